"""A small model of house prices for plain Estimators, with a vocabulary file and export outputs.

It does not import the bridge: the namespace of the estimator is an argument.
"""

from __future__ import annotations

import collections
from typing import Any

import tensorflow.compat.v1 as tf

STREETS = ("elm", "oak", "ash", "fir")
BATCH = 4

Receiver = collections.namedtuple(
    "Receiver", ("features", "receiver_tensors", "receiver_tensors_alternatives", "labels")
)
"""A result of a serving_input_receiver_fn: any object with these attributes will do."""


def data(batches: int | None = None) -> Any:
    """Returns a dataset of (features, labels), which depend on the number of the batch alone."""

    def make(step: Any) -> Any:
        size = tf.stack([step, tf.constant(3, tf.int64)])
        area = tf.random.stateless_uniform([BATCH, 2], size)
        street = tf.gather(tf.constant([*STREETS, "new"]), tf.cast(area[:, 0] * 5, tf.int32))
        return {"area": area, "street": street}, tf.reduce_sum(area, 1, keepdims=True) * 2.0

    return tf.data.Dataset.range(1 << 40 if batches is None else batches).map(make)


def write_vocabulary(path: Any) -> str:
    path.write_text("".join(f"{street}\n" for street in STREETS))
    return str(path)


def make_model_fn(estimator: Any, vocabulary: str, outputs: Any = None, name: str = "") -> Any:
    """Returns a model_fn that returns EstimatorSpecs.

    Args:
        outputs: returns the export_outputs for the predictions; None is without them.
        name: the scope of the variables.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        street = tf.feature_column.categorical_column_with_vocabulary_file(
            "street", vocabulary, num_oov_buckets=1
        )
        columns = [
            tf.feature_column.numeric_column("area", shape=[2]),
            tf.feature_column.embedding_column(street, 3),
        ]
        with tf.variable_scope(name):
            net = tf.feature_column.input_layer(features, columns)
            hidden = tf.get_variable("hidden", [5, 4])
            output = tf.get_variable("output", [4, 1])
        price = tf.matmul(tf.tanh(tf.matmul(net, hidden)), output)
        predictions = {"price": price, "double": 2.0 * price}
        loss = train_op = metrics = None
        if labels is not None:
            loss = tf.losses.mean_squared_error(labels, price)
            metrics = {"error": tf.metrics.mean_absolute_error(labels, price)}
        if mode == "train":
            optimizer = tf.train.AdagradOptimizer((params or {}).get("rate", 0.1))
            train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return estimator.EstimatorSpec(
            mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=metrics,
            export_outputs=None if outputs is None else outputs(predictions),
        )

    return model_fn


def rounding_of_prices(values: Any) -> float:
    """Returns how far apart two evaluations of the model may be whose shapes or graphs differ.

    Other shapes and graphs take other kernels, which add in another order and have another tanh.
    Each evaluation is off by at most: n roundings of the magnitudes of a sum of n products, four
    roundings of a tanh (of 1 at most, and no steeper than 1), and what these errors become in the
    second product.

    Args:
        values: the trained variables by name, "hidden" [5, 4], "output" [4, 1] and the embedding.
    """
    unit = 2.0**-24
    largest = max(1.0, *(float(abs(values[name]).max()) for name in values if "embedding" in name))
    in_tanh = 5 * unit * largest * abs(values["hidden"]).sum(0)
    of_output = (in_tanh + 4 * unit) @ abs(values["output"])
    return 2 * float((of_output + 4 * unit * abs(values["output"]).sum(0)).max())


def run_config(estimator: Any, model_dir: Any, **options: Any) -> Any:
    """Returns a RunConfig that saves at the start and the end of a training."""
    return estimator.RunConfig(
        **{
            "model_dir": str(model_dir),
            "tf_random_seed": 1,
            "save_checkpoints_steps": 100_000,
            "log_step_count_steps": None,
            "checkpoint_save_graph_def": False,
            **options,
        }
    )


def serving_receiver() -> Receiver:
    """Returns a receiver of serialised examples, with the parsed features as an alternative."""
    serialized = tf.placeholder(tf.string, [None], "examples")
    parsed = tf.io.parse_example(
        serialized,
        {
            "area": tf.io.FixedLenFeature([2], tf.float32),
            "street": tf.io.FixedLenFeature([], tf.string),
        },
    )
    return Receiver(parsed, {"examples": serialized}, {"parsed": parsed}, None)


def supervised_receiver() -> Receiver:
    """Returns a receiver of features and labels, for graphs of training and evaluation."""
    features = {
        "area": tf.placeholder(tf.float32, [None, 2], "area"),
        "street": tf.placeholder(tf.string, [None], "street"),
    }
    labels = tf.placeholder(tf.float32, [None, 1], "labels")
    return Receiver(features, {**features, "price": labels}, None, labels)


def examples(batches: int) -> tuple[list[bytes], dict[str, list[Any]]]:
    """Returns the first batches' samples: serialised, and as lists of features."""
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.data.make_one_shot_iterator(data(batches)).get_next()
        taken = [session.run(batch)[0] for _ in range(batches)]
    rows = [row for batch in taken for row in zip(batch["area"], batch["street"], strict=True)]
    serialized = []
    for area, street in rows:
        example = tf.train.Example()
        example.features.feature["area"].float_list.value.extend(area)
        example.features.feature["street"].bytes_list.value.append(street)
        serialized.append(example.SerializeToString())
    return serialized, {"area": [r[0] for r in rows], "street": [r[1] for r in rows]}
