"""A table and batches of every kind for lookups without an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec

stock = tf.tpu.experimental.embedding

ROWS, DIM = 12, 3
TABLE = np.random.default_rng(5).uniform(-1, 1, (ROWS, DIM)).astype(np.float32)
COMBINERS = ("sum", "mean", "sqrtn")


def a_sparse(indices: Any, shape: Sequence[int]) -> Callable[[Any, Any], Any]:
    """Returns a function that creates a SparseTensor from values and a dtype."""
    where = np.array(indices, np.int64).reshape(-1, len(shape))
    return lambda values, dtype: tf.SparseTensor(
        where, tf.constant(values, dtype, [len(where)]), shape
    )


def a_ragged(splits: Sequence[int], dtype: Any = tf.int64) -> Callable[[Any, Any], Any]:
    """Returns a function that creates a RaggedTensor from values and a dtype."""
    return lambda values, kind: tf.RaggedTensor.from_row_splits(
        tf.constant(values, kind), tf.constant(splits, dtype)
    )


def a_dense(ids: Any, dtype: Any) -> tf.Tensor:
    return tf.constant(ids, dtype)


# Four samples of three positions. Sample 1 is empty; sample 2 contains id 7 twice.
PLACES = [[0, 0], [0, 2], [2, 0], [2, 1], [2, 2], [3, 0]]
IDS = [4, 1, 7, 7, 0, 11]
SPARSE = a_sparse(PLACES, [4, 3])
RAGGED = a_ragged([0, 2, 2, 5, 6])
# (sample, position, number): some positions have several ids, others none.
RANK_3 = a_sparse([[0, 0, 0], [0, 0, 1], [2, 1, 0], [2, 1, 1], [2, 1, 3], [2, 2, 0]], [4, 3, 4])


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of batch for one feature.

    Attributes:
        make: creates a tensor from values and a dtype.
        ids: the ids of the batch.
        weighted: whether tests look up the batch with weights too.
        setting: settings of the FeatureConfig.
    """

    make: Callable[[Any, Any], Any]
    ids: Any = dataclasses.field(default_factory=lambda: IDS)
    weighted: bool = False
    dtype: Any = tf.int64
    setting: dict[str, Any] = dataclasses.field(default_factory=dict)

    def features(self) -> Any:
        return self.make(self.ids, self.dtype)

    def weights(self, values: Sequence[float] | None) -> Any:
        return None if values is None else self.make(values[: len(self.ids)], tf.float32)


KINDS = {
    "dense": Kind(a_dense, [3, 0, 3, 11]),
    "dense, int32": Kind(a_dense, [3, 0, 3, 11], dtype=tf.int32),
    "dense, a column": Kind(a_dense, [[3], [0], [3], [11]]),
    "dense, rank 3": Kind(a_dense, [[[3, 1], [0, 2]], [[11, 3], [5, 5]], [[0, 0], [1, 2]]]),
    "dense, a scalar": Kind(a_dense, 3),
    "dense, out of range": Kind(a_dense, [3, 12]),
    "dense, below 0": Kind(a_dense, [3, -1]),
    "sparse": Kind(SPARSE, weighted=True),
    "sparse, int32": Kind(SPARSE, weighted=True, dtype=tf.int32),
    "sparse, last sample empty": Kind(a_sparse(PLACES[:5], [4, 3]), IDS[:5], weighted=True),
    "sparse, nothing": Kind(a_sparse([], [4, 3]), [], weighted=True),
    "sparse, below 0": Kind(SPARSE, [4, -1, 7, -2, 0, -1], weighted=True),
    "sparse, out of range": Kind(SPARSE, [4, 1, 12, 7, 0, 1], weighted=True),
    "sparse, rank 3": Kind(RANK_3, weighted=True),
    "sparse, rank 3, below 0": Kind(RANK_3, [4, -1, 7, -2, 0, -1], weighted=True),
    "sparse, output_shape": Kind(RANK_3, setting={"output_shape": [4, 3]}),
    "sparse, another output_shape": Kind(SPARSE, setting={"output_shape": [7, 2]}),
    "sparse, sequence": Kind(SPARSE, setting={"max_sequence_length": 2}),
    "sparse, long sequence": Kind(SPARSE, setting={"max_sequence_length": 5}),
    "sparse, sequence, a position twice": Kind(
        a_sparse([[0, 0], [0, 0], [1, 1]], [2, 3]), [1, 2, 3], setting={"max_sequence_length": 2}
    ),
    "sparse, sequence, below 0": Kind(
        SPARSE, [4, -1, 7, -2, 0, -1], setting={"max_sequence_length": 3}
    ),
    "sparse, sequence, rank 3": Kind(RANK_3, setting={"max_sequence_length": 2}),
    "sparse, sequence, output_shape": Kind(
        SPARSE, setting={"max_sequence_length": 2, "output_shape": [4]}
    ),
    "ragged": Kind(RAGGED, weighted=True),
    "ragged, int32 splits": Kind(a_ragged([0, 2, 2, 5, 6], tf.int32), weighted=True),
    "ragged, below 0": Kind(RAGGED, [4, -1, 7, 7, 0, 1], weighted=True),
    "ragged, rank 3": Kind(
        lambda values, dtype: tf.ragged.constant([[[1], [2]], [[3]]], dtype=dtype)
    ),
    "ragged, sequence": Kind(RAGGED, setting={"max_sequence_length": 2}),
    "ragged, sequence of length 1": Kind(RAGGED, setting={"max_sequence_length": 1}),
    "ragged, output_shape": Kind(RAGGED, weighted=True, setting={"output_shape": [4]}),
    "ragged, folded": Kind(RAGGED, weighted=True, setting={"output_shape": [2, 2]}),
    "ragged, sequence by output_shape": Kind(
        RAGGED, weighted=True, setting={"output_shape": [4, 2]}
    ),
    "ragged, flat sequence by output_shape": Kind(RAGGED, setting={"output_shape": [8]}),
    "ragged, both": Kind(RAGGED, setting={"output_shape": [4, 2], "max_sequence_length": 3}),
    "ragged, output_shape that does not fit": Kind(RAGGED, setting={"output_shape": [6]}),
    "ragged, open output_shape": Kind(RAGGED, setting={"output_shape": [None, 2]}),
}

LOOKED_UP = [
    name
    for name in KINDS
    if not any(word in name for word in ("range", "below 0", "not fit", "ragged, rank 3"))
]
"""The kinds whose ids are all in the table, and whose shape a FeatureConfig can have."""

WEIGHTS: dict[str, list[float] | None] = {
    "unweighted": None,
    "weighted": [0.5, 2.0, 1.5, 3.0, 0.25, 4.0],
    "some weights not positive": [0.0, -2.0, 1.5, -3.0, 0.25, 0.0],
    "weights of 0": [0.0] * 6,
}


def config(kind: Kind, combiner: str = "mean", **settings: Any) -> Any:
    table = stock.TableConfig(ROWS, DIM, combiner=combiner, name="users")
    return {"n": {"x": stock.FeatureConfig(table, **{**kind.setting, **settings})}}


def outcome(lookup: Any, features: Any, weights: Any, feature_config: Any) -> Any:
    tables = {feature_config["n"]["x"].table: tf.Variable(TABLE)}
    weights = None if weights is None else {"n": {"x": weights}}
    try:
        return lookup({"n": {"x": features}}, weights, tables, feature_config)["n"]["x"].numpy()
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        return error


def spec(kind: Kind, combiner: str = "mean", **options: Any) -> EngineSpec:
    setting = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in kind.setting.items()
    }
    table = TableSpec("users", ROWS, DIM, combiner=combiner, optimizer=SGD(0.5))
    return EngineSpec((table,), (FeatureSpec("x", "users", **setting),), **options)


def in_shards(count: int) -> list[Any]:
    return np.array_split(TABLE, count)
