"""A click model with single, shared, weighted and sequence columns, as such programs are written.

It does not import the bridge: the namespaces of the estimator and of `*Parameters` are arguments.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

ROWS = 50
QUERY_ROWS = 30
LENGTH = 3


def columns(rates: tuple[Any, Any, Any] = (None, None, None)) -> list[Any]:
    """Returns the feature columns: two share a table, one is weighted, one is a sequence.

    Args:
        rates: the learning_rate_fn of each table, or None.
    """
    identity = tf.feature_column.categorical_column_with_identity
    start = tf.random_normal_initializer(stddev=0.1, seed=3)
    shared = tf.tpu.experimental.shared_embedding_columns(
        [
            identity("shown", ROWS),
            tf.feature_column.sequence_categorical_column_with_identity("clicked", ROWS),
        ],
        dimension=4,
        combiner="mean",
        initializer=start,
        max_sequence_lengths=[0, LENGTH],
        learning_rate_fn=rates[0],
        shared_embedding_collection_name="items",
    )
    query = tf.feature_column.weighted_categorical_column(
        identity("query", QUERY_ROWS), "query_weights"
    )
    words = tf.tpu.experimental.embedding_column(
        query, dimension=3, combiner="sqrtn", initializer=start, learning_rate_fn=rates[1]
    )
    place = tf.tpu.experimental.embedding_column(
        identity("place", 7),
        dimension=2,
        combiner="sum",
        initializer=start,
        learning_rate_fn=rates[2],
    )
    return [*shared, words, place]


def batch_of(step: Any, batch_size: int) -> tuple[dict[str, Any], Any]:
    """Returns the features and labels of one step; they depend on the step alone."""
    step = tf.cast(step, tf.int64)

    def integers(offset: int, shape: list[int], limit: int) -> Any:
        seed = tf.stack([step, tf.constant(offset, tf.int64)])
        return tf.random.stateless_uniform(shape, seed, 0, limit, tf.int64)

    def ragged(offset: int, width: int, limit: int) -> tf.SparseTensor:
        lengths = integers(offset, [batch_size], width + 1)
        indices = tf.where(tf.sequence_mask(lengths, width))
        values = tf.gather_nd(integers(offset + 1, [batch_size, width], limit), indices)
        return tf.SparseTensor(indices, values, [batch_size, width])

    query = ragged(20, 4, QUERY_ROWS)
    weights = 0.5 + tf.cast(query.values % 5, tf.float32) / 4.0
    features = {
        "shown": ragged(10, 3, ROWS),
        "clicked": ragged(30, LENGTH + 1, ROWS),
        "query": query,
        "query_weights": tf.SparseTensor(query.indices, weights, query.dense_shape),
        "place": ragged(40, 2, 7),
        "age": tf.cast(integers(50, [batch_size, 1], 90), tf.float32) / 90.0,
    }
    return features, tf.cast(integers(60, [batch_size, 1], 2), tf.float32)


def input_fn(params: dict[str, Any]) -> Any:
    size = params["batch_size"]
    return tf.data.Dataset.range(1 << 40).map(lambda step: batch_of(step, size)).prefetch(2)


def short_input_fn(params: dict[str, Any]) -> Any:
    size = params["batch_size"]
    return tf.data.Dataset.range(5).map(lambda step: batch_of(step, size))


def make_model_fn(
    estimator: Any,
    feature_columns: list[Any],
    *,
    cross_shard: bool,
    optimizer: Any = None,
    dropout: float = 0.0,
    batch_norm: bool = True,
) -> Any:
    """Returns the model_fn.

    Args:
        estimator: the namespace of `tf.compat.v1.estimator`.
        cross_shard: wraps the optimizer in CrossShardOptimizer, as programs do on a TPU.
        optimizer: returns the optimizer of the model for a learning rate.
    """
    optimizer = optimizer or tf.train.AdamOptimizer
    sequence = [column for column in feature_columns if column.get_max_sequence_length()]
    plain = [column for column in feature_columns if column not in sequence]

    def metric_fn(labels: Any, logits: Any) -> dict[str, Any]:
        clicked = tf.cast(logits > 0, tf.float32)
        return {"accuracy": tf.metrics.accuracy(labels, clicked)}

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        training = mode == "train"
        wide = tf.keras.layers.DenseFeatures(plain)(features)
        clicked, lengths = tf.keras.experimental.SequenceFeatures(sequence)(features)
        recent = tf.reduce_sum(clicked, 1) / tf.cast(lengths + 1, tf.float32)[:, tf.newaxis]
        net = tf.concat([wide, recent, features["age"]], 1)
        scale = tf.get_variable(
            "scale", [net.shape.as_list()[1]], initializer=tf.ones_initializer()
        )
        net = tf.layers.dense(net * scale, 8, activation=tf.nn.tanh)
        if batch_norm:
            net = tf.layers.batch_normalization(net, training=training)
        net = tf.layers.dropout(net, dropout, training=training)
        net = tf.keras.layers.Dense(4, activation="tanh")(net)
        logits = tf.layers.dense(net, 1)
        if mode == "infer":
            return estimator.tpu.TPUEstimatorSpec(mode, predictions={"p": tf.nn.sigmoid(logits)})
        loss = tf.losses.sigmoid_cross_entropy(labels, logits)
        if mode == "eval":
            return estimator.tpu.TPUEstimatorSpec(
                mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
            )
        step = tf.train.get_global_step()
        rate = tf.train.exponential_decay(params.get("learning_rate", 0.01), step, 100, 0.9)
        model_optimizer = optimizer(rate)
        if cross_shard:
            model_optimizer = tf.tpu.CrossShardOptimizer(model_optimizer)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = model_optimizer.minimize(loss, global_step=step)
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def run_config(
    estimator: Any, model_dir: str, *, save_graph: bool = False, **tpu_options: Any
) -> Any:
    """Returns a RunConfig that saves at the start and the end of a training.

    Args:
        save_graph: saves the graph beside the values, too, which takes a while.
    """
    return estimator.tpu.RunConfig(
        model_dir=model_dir,
        tf_random_seed=1,
        save_checkpoints_steps=100_000,
        save_summary_steps=0,
        log_step_count_steps=None,
        checkpoint_save_graph_def=save_graph,
        tpu_config=estimator.tpu.TPUConfig(
            **{
                "per_host_input_for_training": estimator.tpu.InputPipelineConfig.PER_HOST_V2,
                **tpu_options,
            },
        ),
    )
