"""Converts features with all columns of a model in one call, for `tf.data` and for models."""

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
        ids: for each feature a SparseTensor of int64, without missing ids.
        weights: for each feature the weights, if any; None if no feature has weights.
        lengths: for each sequence feature, [batch] int64, the number of positions, including those
            without an id.
    """

    ids: dict[str, SparseTensor]
    weights: dict[str, SparseTensor | None] | None
    lengths: dict[str, Tensor]


class Preprocessing(tf.Module):
    """Converts raw features to the same ids as feature columns.

        dataset = dataset.map(lambda features: prepare(features))
        embedding.enqueue(prepared.ids, prepared.weights)

    Raw features are Tensors, SparseTensors or RaggedTensors of strings or numbers. Their first
    dimension is the batch. As in feature columns, '' and -1 in dense features are missing values.
    Lookup tables are saved with a model that contains this object.

    Args:
        columns: maps each feature of the engine to the column that computes the feature's ids.
    """

    def __init__(self, columns: Mapping[str, Column], name: str | None = None) -> None:
        super().__init__(name)
        for key, column in columns.items():
            if not isinstance(column, Column):
                raise errors.WrongType(
                    f"Feature {key!r}: {column!r} is not a column of tf2_engine.preprocessing."
                )
        # A tuple of pairs, because a tf.Module tracks lists, and dicts with string keys.
        self._columns = tuple(columns.items())
        tables = {part: part.make_table() for _, each in self._columns for part in _parts(each)}
        # The names of attributes are part of checkpoints and SavedModels.
        self._made_of = tuple(part for part, table in tables.items() if table is not None)
        self._tables = [tables[part] for part in self._made_of]

    @property
    def columns(self) -> dict[str, Column]:
        return dict(self._columns)

    def __call__(self, features: Mapping[str, Ids]) -> Prepared:
        """Computes the ids of a batch. Raw features that no column reads are ignored.

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
    check = tf.debugging.assert_equal(
        *(tf.size(weights.values), tf.size(present)),
        f"Feature {key!r} has more or fewer weights than ids. Give each id one weight; "
        "a 0 in a dense Tensor does not count as a weight.",
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.sparse.retain(tf.sparse.map_values(tf.identity, weights), present)


def _parts(column: Column) -> Iterator[Column]:
    for part in column.parts:
        yield from _parts(part)
    yield column


def _lengths(ids: SparseTensor) -> Tensor:
    ends = tf.math.unsorted_segment_max(
        ids.indices[:, 1] + 1, ids.indices[:, 0], ids.dense_shape[0]
    )
    return tf.maximum(ends, 0)


def in_order(prepared: Prepared) -> Prepared:
    weights = {
        key: None if weight is None else tf.sparse.reorder(weight)
        for key, weight in (prepared.weights or {}).items()
    }
    return prepared._replace(
        ids={key: tf.sparse.reorder(ids) for key, ids in prepared.ids.items()},
        weights=weights if prepared.weights is not None else None,
    )


class SparseCorePreprocessing(Preprocessing):
    """Converts raw features to ids for TPUs with SparseCores, that is, for stock's TPUEmbeddingV2.

    The ids and weights of `Preprocessing` become SparseTensors of rank 2, sorted by sample. A
    sequence with the output shape [batch, T] becomes [batch * T, ids per position], one row per
    position.

    Args:
        columns: maps each feature to the column that computes the feature's ids.
        sequences: maps each sequence feature to the length T to which it is cut.
    """

    def __init__(
        self, columns: Mapping[str, Column], sequences: Mapping[str, int], name: str | None = None
    ) -> None:
        super().__init__(columns, name)
        self._lengths_of = tuple(sequences.items())

    def __call__(self, features: Mapping[str, Ids]) -> Prepared:
        prepared, lengths = super().__call__(features), dict(self._lengths_of)
        weights = prepared.weights or {}
        return Prepared(
            {key: _by_row(ids, lengths.get(key)) for key, ids in prepared.ids.items()},
            {
                key: None if weight is None else _by_row(weight, lengths.get(key))
                for key, weight in weights.items()
            }
            or None,
            {key: tf.minimum(each, lengths[key]) for key, each in prepared.lengths.items()},
        )


def _by_row(values: SparseTensor, length: int | None) -> SparseTensor:
    if length is None:
        return tf.sparse.reorder(values)
    values = tf.sparse.retain(values, values.indices[:, 1] < length)
    indices, shape = values.indices, values.dense_shape
    rank = indices.shape[1] or 2
    row = indices[:, 0] * length + indices[:, 1]
    within = indices[:, 2] if rank > 2 else tf.zeros_like(row)
    width = shape[2] if rank > 2 else tf.ones([], tf.int64)
    return tf.sparse.reorder(
        tf.SparseTensor(
            tf.stack([row, within], 1), values.values, tf.stack([shape[0] * length, width])
        )
    )
