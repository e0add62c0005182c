"""All columns of a model as one callable, for `tf.data` and for models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.preprocessing.categorical import Column
from tf2_engine.preprocessing.raw_features import RawFeatures
from tf2_engine.types import Ids, SparseTensor, Tensor


class Prepared(NamedTuple):
    """The inputs of an engine.

    Attributes:
        ids: by feature, a SparseTensor of int64 without the ids of -1, which mean no id.
        weights: by feature, the weights or None; None as a whole if no feature has any.
        lengths: by sequence feature, [batch] int64: positions, those without an id included.
    """

    ids: dict[str, SparseTensor]
    weights: dict[str, SparseTensor | None] | None
    lengths: dict[str, Tensor]


class Preprocessing(tf.Module):
    """Turns raw features into the ids that feature columns make of them.

        dataset = dataset.map(lambda features: prepare(features))
        embedding.enqueue(prepared.ids, prepared.weights)

    Raw features are Tensors, SparseTensors or RaggedTensors of strings and numbers, the batch
    first; as in feature columns '' and -1 in dense ones stand for missing values. Lookup tables are
    made once, by the constructor, and are saved with models that hold this object.

    Args:
        columns: by feature of the engine, the column of its ids.

    Raises:
        WrongType: a value of `columns` is not a Column.
    """

    def __init__(self, columns: Mapping[str, Column], name: str | None = None) -> None:
        super().__init__(name)
        for key, column in columns.items():
            if not isinstance(column, Column):
                raise errors.WrongType(
                    f"Feature {key!r}: {column!r} is not a column of tf2_engine.preprocessing."
                )
        # Pairs, since a tf.Module tracks lists, and dicts with keys that are strings.
        self._columns = tuple(columns.items())
        tables = {part: part.make_table() for _, each in self._columns for part in _parts(each)}
        # The name is part of checkpoints and SavedModels, as those of all attributes here.
        self._made_of = tuple(part for part, table in tables.items() if table is not None)
        self._tables = [tables[part] for part in self._made_of]

    @property
    def columns(self) -> dict[str, Column]:
        """The column of each feature."""
        return dict(self._columns)

    def __call__(self, features: Mapping[str, Ids]) -> Prepared:
        """Returns the ids of a batch; raw features that no column reads are not touched.

        Raises:
            InvalidInput, WrongType: a feature is missing or does not fit its column.
        """
        raw = RawFeatures(features, dict(zip(self._made_of, self._tables, strict=True)))
        ids: dict[str, SparseTensor] = {}
        weights: dict[str, SparseTensor | None] = {}
        lengths: dict[str, Tensor] = {}
        for key, column in self._columns:
            with_missing, weight = column.ids(raw), column.weights(raw)
            if column.is_sequence:
                lengths[key] = _lengths(with_missing)
            present = with_missing.values >= 0
            ids[key] = tf.sparse.retain(with_missing, present)
            weights[key] = None if weight is None else _retain(key, weight, present)
        weighted = any(value is not None for value in weights.values())
        return Prepared(ids, weights if weighted else None, lengths)


def _retain(key: str, weights: SparseTensor, present: Tensor) -> SparseTensor:
    """Returns the weights of the ids that are present, one for each."""
    check = tf.debugging.assert_equal(
        *(tf.size(weights.values), tf.size(present)),
        f"Feature {key!r} has another number of weights than of ids. Give each id one weight; a "
        "weight of 0 in a dense Tensor is none.",
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.sparse.retain(tf.sparse.map_values(tf.identity, weights), present)


def _parts(column: Column) -> Iterator[Column]:
    """Yields the columns that a column is made of, at any depth, and itself last."""
    for part in column.parts:
        yield from _parts(part)
    yield column


def _lengths(ids: SparseTensor) -> Tensor:
    """Returns [batch] int64: one more than the last position at which there was a value."""
    ends = tf.math.unsorted_segment_max(
        ids.indices[:, 1] + 1, ids.indices[:, 0], ids.dense_shape[0]
    )
    return tf.maximum(ends, 0)
