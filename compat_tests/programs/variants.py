"""A tiny program for each feature that columns and model_fns of TPU programs may use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from compat_tests.programs import tiny


@dataclasses.dataclass(frozen=True)
class Variant:
    """A program.

    Attributes:
        name: the feature that it uses.
        columns: returns the columns of its spec.
        body: returns the body for the columns.
        model_options: those of `tiny.make`.
        rounding: the unit roundoff of the type that it computes in.
    """

    name: str
    columns: Callable[[], Sequence[Any]] = lambda: [tiny.column()]
    body: Callable[[Any], tiny.Body] = tiny.plain
    input_fn: Callable[[Any], Any] = tiny.input_fn
    model_options: Callable[[Any, Any], Mapping[str, Any]] | None = None
    rounding: float = 2.0**-24

    def __str__(self) -> str:
        return self.name

    def make(self, estimator: Any, model_dir: Any, *, use_tpu: bool) -> Any:
        columns = self.columns()
        return tiny.make(
            estimator,
            str(model_dir),
            columns,
            self.body(columns),
            use_tpu=use_tpu,
            model_options=self.model_options,
        )


# --- Bodies -------------------------------------------------------------------------------


def after(function: Callable[[Any], Any]) -> Callable[[Any], tiny.Body]:
    """Returns a maker of bodies that apply a function to their output."""

    def body_of(columns: Any) -> tiny.Body:
        inner = tiny.plain(columns)
        return lambda features: function(inner(features))

    return body_of


def in_bfloat16(columns: Any) -> tiny.Body:
    """Returns a body that computes in bfloat16, as its weight is."""

    def body(features: Any) -> Any:
        with tf.tpu.bfloat16_scope():
            net = tf.keras.layers.DenseFeatures(columns)(features)
            net = tf.cast(tf.concat([net, features["x"]], 1), tf.bfloat16)
            weight = tf.get_variable(
                "weight", [3, 1], tf.bfloat16, initializer=tf.ones_initializer()
            )
            return tf.cast(tf.matmul(net, weight), tf.float32)

    return body


def of_sequence(columns: Any) -> tiny.Body:
    """Returns a body that weights the positions of a sequence by their numbers.

    It reports activations if their shape is known.
    """

    def body(features: Any) -> Any:
        looked_up, lengths = tf.keras.experimental.SequenceFeatures(columns)(features)
        count = tf.cast(tf.shape(looked_up)[1], tf.float32)
        positions = tf.range(1.0, count + 1.0)[tf.newaxis, :, tf.newaxis]
        weight = tf.get_variable("weight", [2, 1], initializer=tf.ones_initializer())
        lengths = tf.cast(lengths, tf.float32)
        net = tf.reduce_sum(looked_up * positions, 1) / (1.0 + lengths[:, tf.newaxis])
        reported = {"activations": looked_up, "lengths": lengths}
        return tf.matmul(net, weight), reported if looked_up.shape.is_fully_defined() else {}

    return body


def with_ordinary_column(columns: Any) -> tiny.Body:
    """Returns a body that also looks a feature up by a column that is not in the spec."""
    ordinary = tf.feature_column.embedding_column(tiny.identity("dense"), 2, "sum", tiny.start)
    return tiny.plain([*columns, ordinary])


# --- Inputs -------------------------------------------------------------------------------


def sequences(number: Any) -> tf.SparseTensor:
    """Returns sequences with gaps, of none to five positions."""
    places = [[0, 0], [0, 2], [2, 1], [3, 0], [3, 1], [3, 2], [3, 3], [5, 2], [7, 0], [7, 4]]
    ids = (tf.range(1, 11, dtype=tf.int64) + number) % tiny.ROWS
    return tf.SparseTensor(places, ids, [tiny.BATCH, 5])


def multivalent(number: Any) -> tf.SparseTensor:
    """Returns sequences with gaps whose positions have none, one or two ids."""
    places = [
        *([0, 0, 0], [0, 2, 0], [0, 2, 1], [2, 1, 0], [3, 0, 0], [3, 0, 1], [3, 1, 0], [3, 2, 0]),
        *([5, 2, 1], [7, 0, 0], [7, 3, 0]),
    ]
    ids = (tf.range(1, 12, dtype=tf.int64) + number) % tiny.ROWS
    return tf.SparseTensor(places, ids, [tiny.BATCH, 4, 2])


def weighted(number: Any) -> tf.SparseTensor:
    """Returns weights for the ids of `tiny.features_of`'s "a"."""
    ids = tiny.features_of(number)["a"]
    weights = 0.5 + tf.cast(ids.values % 3, tf.float32) / 4.0
    return tf.SparseTensor(ids.indices, weights, ids.dense_shape)


# --- The table ----------------------------------------------------------------------------


def _sequence(length: int, combiner: str = "sum") -> Callable[[], Sequence[Any]]:
    return lambda: [tiny.column(tiny.sequence(), max_sequence_length=length, combiner=combiner)]


def _on_device(device: str, **options: Any) -> Callable[[], Sequence[Any]]:
    return lambda: [tiny.column(embedding_lookup_device=device, **options)]


def _weighted_column() -> Sequence[Any]:
    column = tf.feature_column.weighted_categorical_column(tiny.identity(), "weights")
    return [tiny.column(column, combiner="mean")]


TENSOR_CORE = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [tiny.BATCH, 2]}
BOTH = tiny.inputs("a", "b")

VARIANTS = (
    Variant("sum"),
    Variant("mean", lambda: [tiny.column(combiner="mean")]),
    Variant("sqrtn", lambda: [tiny.column(combiner="sqrtn")]),
    Variant("no combiner", lambda: [tiny.column(combiner=None)]),
    Variant("weights", _weighted_column, input_fn=tiny.inputs("a", weights=weighted)),
    Variant("shared", tiny.shared, input_fn=BOTH),
    Variant(
        "a rate of its own",
        lambda: [
            tiny.column(learning_rate_fn=lambda step: tf.constant(0.03)),
            tiny.column(tiny.identity("b")),
        ],
        input_fn=BOTH,
    ),
    Variant(
        "an ordinary column beside",
        body=with_ordinary_column,
        input_fn=tiny.inputs("a", "dense"),
    ),
    Variant(
        "without safe lookup",
        lambda: [tiny.column(tiny.identity("b"), use_safe_embedding_lookup=False)],
        input_fn=tiny.inputs("b"),
    ),
    Variant("sequence with gaps", _sequence(5), of_sequence, tiny.inputs(a=sequences)),
    Variant("sequence cut", _sequence(2), of_sequence, tiny.inputs(a=sequences)),
    Variant("sequence padded", _sequence(7), of_sequence, tiny.inputs(a=sequences)),
    Variant("multivalent sequence", _sequence(4, "mean"), of_sequence, tiny.inputs(a=multivalent)),
    Variant(
        "multivalent sequence cut", _sequence(2, "sqrtn"), of_sequence, tiny.inputs(a=multivalent)
    ),
    Variant(
        "tensor core", _on_device(**{"device": "tpu_tensor_core", "tensor_core_shape": [8, 2]})
    ),
    Variant("tensor core cut", _on_device("tpu_tensor_core", tensor_core_shape=[8, 1])),
    Variant(
        "tensor core, mean",
        _on_device("tpu_tensor_core", tensor_core_shape=[8, 2], combiner="mean"),
    ),
    Variant(
        "tensor core beside embedding core",
        lambda: [tiny.column(**TENSOR_CORE), tiny.column(tiny.identity("b"))],
        input_fn=BOTH,
    ),
    Variant("embedding core", _on_device("tpu_embedding_core")),
    Variant("shared on the tensor core", lambda: tiny.shared(**TENSOR_CORE), input_fn=BOTH),
    Variant(
        "shared on the embedding core",
        lambda: tiny.shared(embedding_lookup_device="tpu_embedding_core"),
        input_fn=BOTH,
    ),
    Variant("bfloat16_scope", body=in_bfloat16, rounding=2.0**-8),
    Variant("outside_compilation", body=after(lambda y: tf.tpu.outside_compilation(tf.sin, y))),
    Variant("cross_replica_sum", body=after(lambda y: 0.5 * tf.tpu.cross_replica_sum(y))),
    Variant(
        "metrics of a dict",
        model_options=lambda output, loss: {
            "eval_metrics": (
                lambda one, two: {"sum": tf.metrics.mean(one + two), "two": tf.metrics.mean(two)},
                {"two": 2.0 * output, "one": output},
            )
        },
    ),
)
