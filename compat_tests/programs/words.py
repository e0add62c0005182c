"""A minimal TPUEstimator program, for tests of everything around a model.

The namespaces of the estimator and of the `*Parameters` are arguments.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

BATCH = 4
WORDS = 10


def batch_of(step: Any, batch_size: int) -> tuple[dict[str, Any], Any]:
    """Returns the features and labels of one step; they depend on the step alone."""
    rows = tf.range(batch_size, dtype=tf.int64)
    ids = (rows * 3 + tf.cast(step, tf.int64)) % WORDS
    places = tf.stack([rows, tf.zeros_like(rows)], 1)
    word = tf.SparseTensor(places, ids, [batch_size, 1])
    return {"word": word}, tf.cast(ids, tf.float32)[:, tf.newaxis] / WORDS


def input_fn(params: dict[str, Any]) -> Any:
    size = params["batch_size"]
    return tf.data.Dataset.range(1 << 40).map(lambda step: batch_of(step, size))


def short_input_fn(params: dict[str, Any]) -> Any:
    size = params["batch_size"]
    return tf.data.Dataset.range(5).map(lambda step: batch_of(step, size))


def metric_fn(labels: Any, predictions: Any) -> dict[str, Any]:
    return {"distance": tf.metrics.mean_absolute_error(labels, predictions)}


def make(
    namespace: Any,
    model_dir: Any,
    parameters: Any,
    *,
    use_tpu: bool = False,
    iterations_per_loop: int = 2,
    **settings: Any,
) -> Any:
    """Returns a TPUEstimator of either side.

    Args:
        parameters: the namespace of `AdagradParameters`.
        **settings: of the RunConfig.
    """
    column = tf.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_identity("word", WORDS),
        dimension=2,
        initializer=tf.constant_initializer(0.5),
    )

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        embedded = tf.keras.layers.DenseFeatures([column])(features)
        weights = tf.get_variable("weights", [2, 1], initializer=tf.ones_initializer())
        predictions = tf.matmul(embedded, weights)
        if mode == "infer":
            return namespace.tpu.TPUEstimatorSpec(mode, predictions={"p": predictions})
        loss = tf.losses.mean_squared_error(labels, predictions)
        if mode == "eval":
            return namespace.tpu.TPUEstimatorSpec(
                mode, loss=loss, eval_metrics=(metric_fn, [labels, predictions])
            )
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        if use_tpu:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
        return namespace.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    run_config = {"tf_random_seed": 1, "log_step_count_steps": None, **settings}
    return namespace.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=use_tpu,
        config=namespace.tpu.RunConfig(
            model_dir=str(model_dir),
            tpu_config=namespace.tpu.TPUConfig(iterations_per_loop=iterations_per_loop),
            **{"checkpoint_save_graph_def": False, **run_config},
        ),
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        embedding_config_spec=namespace.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=[column],
            optimization_parameters=parameters.AdagradParameters(0.1),
        ),
    )
