"""A program with config dicts: combined, weighted, shared, dense and sequence features.

Its model uses the activations alone, and has no variables but the tables and one dense layer, so
that gradient descent on it can be written out. On request it counts how often another feature is
seen.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters, table_config

BATCH = 8
LENGTH = 3
ROWS = {"items": 12, "places": 6, "words": 9}
DIMENSION = 2
RATE = 0.02
SEEN = 20
"""Rows of the table of counts."""


def make(
    model_dir: str,
    *,
    use_tpu: bool,
    optimizer: Any = None,
    tables: dict[str, dict[str, Any]] | None = None,
    counter: Any = None,
    model_optimizer: Any = None,
    params: dict[str, Any] | None = None,
    spec_options: dict[str, Any] | None = None,
    tpu_options: dict[str, Any] | None = None,
    namespace: Any = estimator,
    classes: Any = table_config,
    **options: Any,
) -> Any:
    """Returns a TPUEstimator, by default of the bridge.

    Args:
        namespace: of `tf.compat.v1.estimator`.
        classes: has the TableConfig and FeatureConfig that go with it.
        optimizer: of the tables; None is gradient descent of rate `RATE`.
        tables: for each table further arguments of its TableConfig.
        counter: the optimizer of a table of counts; None makes no such table.
        model_optimizer: returns the optimizer of the model; None is gradient descent of rate
            `RATE`.
        spec_options: further arguments of the spec.
        options: further arguments of the estimator.
    """
    start = tf.random_normal_initializer(stddev=0.5, seed=7)
    combiners = {"items": "mean", "places": None, "words": "sqrtn"}
    settings = {
        name: {"initializer": start, "combiner": combiner, **(tables or {}).get(name, {})}
        for name, combiner in combiners.items()
    }
    feature = classes.FeatureConfig
    table_configs = {
        name: classes.TableConfig(ROWS[name], DIMENSION, **arguments)
        for name, arguments in settings.items()
    }
    features = {
        "shown": feature("items"),
        "clicked": feature("items", max_sequence_length=LENGTH, weight_key="clicked_weights"),
        "place": feature("places"),
        "query": feature("words", weight_key="query_weights"),
    }
    if counter is not None:
        features["seen"] = feature("seen")
        table_configs["seen"] = classes.TableConfig(
            SEEN,
            1,
            tf.constant_initializer(counter.max_delta),
            combiner=None,
            learning_rate_fn=step_before,
            optimization_parameters=counter,
        )
    spec = namespace.tpu.experimental.EmbeddingConfigSpec(
        table_to_config_dict=table_configs,
        feature_to_config_dict=features,
        optimization_parameters=optimizer or parameters.StochasticGradientDescentParameters(RATE),
        **(spec_options or {}),
    )
    return namespace.tpu.TPUEstimator(
        model_fn=_make_model_fn(
            namespace,
            model_optimizer or (lambda: tf.train.GradientDescentOptimizer(RATE)),
            counter is not None,
        ),
        use_tpu=use_tpu,
        config=clicks.run_config(namespace, str(model_dir), **(tpu_options or {})),
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        params=params,
        embedding_config_spec=spec,
        **options,
    )


def batch_of(step: Any, batch_size: int) -> tuple[dict[str, Any], Any]:
    """Returns the features and labels of one step; they depend on the step alone."""
    step = tf.cast(step, tf.int64)

    def integers(offset: int, shape: list[int], limit: int) -> Any:
        seed = tf.stack([step, tf.constant(offset, tf.int64)])
        return tf.random.stateless_uniform(shape, seed, 0, limit, tf.int64)

    def sparse(offset: int, shape: list[int], limit: int) -> tf.SparseTensor:
        indices = tf.where(integers(offset, shape, 3) > 0)  # two in three are present
        values = tf.gather_nd(integers(offset + 1, shape, limit), indices)
        return tf.SparseTensor(indices, values, shape)

    def weights_of(ids: tf.SparseTensor) -> tf.SparseTensor:
        weights = 0.5 + tf.cast(ids.values % 5, tf.float32) / 4.0
        return tf.SparseTensor(ids.indices, weights, ids.dense_shape)

    # Several ids per position, and one position more than the maximum.
    clicked = sparse(20, [batch_size, LENGTH + 1, 2], ROWS["items"])
    query = sparse(30, [batch_size, 3], ROWS["words"])
    features = {
        "shown": sparse(10, [batch_size, 4], ROWS["items"]),
        "clicked": clicked,
        "clicked_weights": weights_of(clicked),
        "place": integers(40, [batch_size], ROWS["places"]),
        "query": query,
        "query_weights": weights_of(query),
        "seen": integers(60, [batch_size], SEEN),
    }
    return features, tf.cast(integers(50, [batch_size, 1], 2), tf.float32)


def input_fn(params: dict[str, Any]) -> Any:
    size = params["batch_size"]
    return tf.data.Dataset.range(1 << 40).map(lambda step: batch_of(step, size))


def short_input_fn(params: dict[str, Any]) -> Any:
    return input_fn(params).take(3)


def step_before(step: Any) -> Any:
    """Returns the global step before the model increments it, for learning_rate_fns and the like.

    Stock passes them a step that may be read before or after the increment.

    Args:
        step: the argument of those functions.
    """
    (before,) = tf.get_collection(_STEP_BEFORE)
    return tf.cast(before, tf.float32)


_STEP_BEFORE = "step before the increment"


def _make_model_fn(estimator: Any, optimizer: Any, counts: bool) -> Any:
    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        lengths = tf.cast(features["clicked_seq_length_"], tf.float32)[:, tf.newaxis] / LENGTH
        net = tf.concat(
            [
                features["shown"],
                tf.reduce_sum(features["clicked"], 1),
                features["place"],
                features["query"],
                lengths,
                # Without a table of counts the feature is not used.
                *([tf.stop_gradient(features["seen"]) / SEEN] if counts else []),
            ],
            1,
        )
        logits = tf.layers.dense(net, 1, kernel_initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.square(logits - labels))
        if mode == "eval":
            return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)
        model_optimizer = optimizer()
        if params["use_tpu"]:
            model_optimizer = tf.tpu.CrossShardOptimizer(model_optimizer)
        step = tf.train.get_global_step()
        before = tf.identity(step)
        tf.add_to_collection(_STEP_BEFORE, before)
        with tf.control_dependencies([before]):
            train_op = model_optimizer.minimize(loss, step)
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn
