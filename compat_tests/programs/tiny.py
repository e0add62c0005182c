"""A regression that trains in a fraction of a second, of any columns and any body.

The namespace of the estimator is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from compat_tests.programs import houses
from estimator_bridge.legacy import parameters

BATCH = 8
ROWS = 10


def identity(key: str = "a") -> Any:
    return tf.feature_column.categorical_column_with_identity(key, ROWS)


def sequence(key: str = "a") -> Any:
    return tf.feature_column.sequence_categorical_column_with_identity(key, ROWS)


def start(*_: Any, **__: Any) -> Any:
    """Initializes tables: row i is i + 1, i + 1.5, i + 2, ..., over 10."""
    shape = _[0]
    rows = tf.range(1.0, shape[0] + 1)[:, tf.newaxis]
    return (rows + tf.range(shape[1], dtype=tf.float32) / 2.0) / 10.0


def column(categorical: Any = None, **options: Any) -> Any:
    """Returns a TPU embedding column of dimension 2."""
    settings = {"dimension": 2, "combiner": "sum", "initializer": start, **options}
    return tf.tpu.experimental.embedding_column(categorical or identity(), **settings)


def shared(keys: Sequence[str] = ("a", "b"), **options: Any) -> list[Any]:
    """Returns TPU embedding columns that share a table of dimension 2."""
    settings = {
        "dimension": 2,
        "combiner": "sum",
        "initializer": start,
        "shared_embedding_collection_name": "shared",
        **options,
    }
    return list(
        tf.tpu.experimental.shared_embedding_columns([identity(key) for key in keys], **settings)
    )


def features_of(number: Any) -> dict[str, Any]:
    """Returns features of one batch: ids "a" (none, one or two), "b" (one), dense ids, "x"."""
    rows = tf.range(BATCH, dtype=tf.int64)
    several = tf.SparseTensor(
        [[0, 0], [0, 1], [2, 0], [3, 0], [4, 0], [4, 1], [6, 1], [7, 0]],
        (number + tf.constant([3, 3, 1, 7, 0, 9, 2, 3], tf.int64)) % ROWS,
        [BATCH, 2],
    )
    one = tf.SparseTensor(tf.stack([rows, 0 * rows], 1), (number + rows) % 4, [BATCH, 1])
    x = tf.cast(rows[:, tf.newaxis] % 3, tf.float32) / 4.0
    dense = (number + rows[:, tf.newaxis]) % 3
    return {"a": several, "b": one, "dense": dense, "x": x}


def inputs(*keys: str, **functions: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns an input_fn of endless features and labels.

    Args:
        keys: the features beside "x"; "a" if there are none. A TPU accepts no sparse tensors that
            are not looked up.
        functions: return further features, by name, for the number of the batch.
    """
    chosen = {"x", *(keys or (() if functions else ("a",)))}

    def batch(number: Any) -> Any:
        features = {key: value for key, value in features_of(number).items() if key in chosen}
        features.update({key: make(number) for key, make in functions.items()})
        return features, tf.ones([BATCH, 1])

    return lambda params: tf.data.Dataset.range(1 << 40).map(batch)


input_fn = inputs()


def short_input_fn(params: Any) -> Any:
    return input_fn(params).take(5)


def receiver(keys: str = "a") -> Any:
    """Returns what a serving_input_receiver_fn does, for the ids of some features and "x"."""
    features = {key: tf.sparse.placeholder(tf.int64, [None, None], key) for key in keys}
    features["x"] = tf.placeholder(tf.float32, [None, 1], "x")
    return houses.Receiver(features, features, None, None)


Body = Callable[[Any], Any]
"""Returns the output [batch, 1] for the features, or that and tensors [batch, ...] to report."""


def plain(columns: Sequence[Any]) -> Body:
    """Returns a body that multiplies the embeddings and "x" by a vector of weights."""

    def body(features: Mapping[str, Any]) -> Any:
        net = tf.concat([tf.keras.layers.DenseFeatures(columns)(features), features["x"]], 1)
        weight = tf.get_variable(
            "weight", [net.shape.as_list()[1], 1], initializer=tf.ones_initializer()
        )
        return tf.matmul(net, weight)

    return body


def sgd(rate: float) -> Any:
    """Returns TensorFlow's own parameters of SGD, or the bridge's where there are none."""
    kind = getattr(tf.tpu.experimental, "StochasticGradientDescentParameters", None)
    return (kind or parameters.StochasticGradientDescentParameters)(rate)


def make(
    estimator: Any,
    model_dir: str,
    columns: Sequence[Any],
    body: Body | None = None,
    *,
    use_tpu: bool,
    spec: Any = None,
    model_options: Callable[[Any, Any], Mapping[str, Any]] | None = None,
    tpu_options: Mapping[str, Any] | None = None,
    run_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Returns a TPUEstimator.

    Args:
        columns: of the spec, and of the model unless there is a body.
        spec: an EmbeddingConfigSpec; None is one over the columns, with SGD; False is none.
        model_options: more fields of the TPUEstimatorSpec, from output and loss.
        tpu_options: of TPUConfig.
        run_options: of RunConfig.
    """
    body = body or plain(columns)

    def metric_fn(output: Any, **reported: Any) -> dict[str, Any]:
        means = {name: tf.metrics.mean_tensor(value) for name, value in reported.items()}
        return {"mean": tf.metrics.mean(output), **means}

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        result = body(features)
        output, reported = result if isinstance(result, tuple) else (result, {})
        loss = train_op = None
        if mode != "infer":
            loss = tf.reduce_mean(tf.square(output - labels))
        if mode == "train":
            optimizer = tf.train.GradientDescentOptimizer(0.05)
            if params["use_tpu"]:
                optimizer = tf.tpu.CrossShardOptimizer(optimizer)
            train_op = optimizer.minimize(loss, tf.train.get_global_step())
        more = {} if model_options is None else model_options(output, loss)
        fields = {"eval_metrics": (metric_fn, {"output": output, **reported}), **more}
        return estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, predictions={"p": output}, **fields
        )

    if spec is None:
        spec = estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns,
            optimization_parameters=sgd(0.1),
        )
    of_run = {"save_checkpoints_steps": 100_000, "checkpoint_save_graph_def": False}
    config = estimator.tpu.RunConfig(
        model_dir=str(model_dir),
        tf_random_seed=1,
        log_step_count_steps=None,
        **{**of_run, **(run_options or {})},
        tpu_config=estimator.tpu.TPUConfig(
            **{"iterations_per_loop": 2, "per_host_input_for_training": 3, **(tpu_options or {})}
        ),
    )
    return estimator.tpu.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=use_tpu,
        params={},
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        embedding_config_spec=spec or None,
        **options,
    )
