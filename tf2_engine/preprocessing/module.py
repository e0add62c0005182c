"""All columns of a model as one callable, for `tf.data` as well as inside of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.preprocessing.columns import Column
from tf2_engine.preprocessing.inputs import Inputs


class Prepared(NamedTuple):
    """What an engine is given.

    Attributes:
        ids: by feature, a SparseTensor of int64; -1, which means nothing, is left out.
        weights: by feature, the weights or None; None as a whole if no feature has any.
        lengths: by sequence feature, [batch] int64: positions, those without an id included.
    """

    ids: dict[str, Any]
    weights: dict[str, Any] | None
    lengths: dict[str, Any]


class Preprocessing(tf.Module):
    """Makes ids of raw features, the same as feature columns make.

        dataset = dataset.map(lambda features: prepare(features))
        embedding.enqueue(prepared.ids, prepared.weights)

    Raw features are Tensors, SparseTensors or RaggedTensors of strings and numbers, the batch
    first; as in feature columns '' and -1 in dense ones stand for nothing. Lookup tables are made
    once, by the constructor, and are saved with models that hold this object.

    Args:
        columns: by feature of the engine, how its ids are made.

    Raises:
        WrongType: something is no column.
    """

    def __init__(self, columns: Mapping[str, Column], name: str | None = None) -> None:
        super().__init__(name)
        for key, column in columns.items():
            if not isinstance(column, Column):
                raise errors.WrongType(
                    f"Feature {key!r}: {column!r} is no column of tf2_engine.preprocessing."
                )
        # Pairs, since a tf.Module tracks lists, and dicts with keys that are strings.
        self._columns = tuple(columns.items())
        tables = {
            each: each.make_table() for _, column in self._columns for each in _all_parts(column)
        }
        self._made_of = tuple(each for each, table in tables.items() if table is not None)
        self._tables = [tables[each] for each in self._made_of]

    @property
    def columns(self) -> dict[str, Column]:
        """How the ids of each feature are made."""
        return dict(self._columns)

    def __call__(self, features: Mapping[str, Any]) -> Prepared:
        """Returns the ids of a batch.

        Args:
            features: raw features by key; those that no column reads are not touched.

        Raises:
            InvalidInput, WrongType: a feature is missing or does not fit its column.
        """
        inputs = Inputs(features, dict(zip(self._made_of, self._tables, strict=True)))
        ids, weights, lengths = {}, {}, {}
        for key, column in self._columns:
            made = column.ids(inputs)
            if column.is_sequence:
                lengths[key] = _lengths(made)
            ids[key], weights[key] = _without_nothing(made, column.weights(inputs))
        weighted = any(value is not None for value in weights.values())
        return Prepared(ids, weights if weighted else None, lengths)


def _all_parts(column: Column) -> Iterator[Column]:
    for part in column.parts:
        yield from _all_parts(part)
    yield column


def _without_nothing(ids: Any, weights: Any) -> tuple[Any, Any]:
    keep = ids.values >= 0
    if weights is not None:
        weights = tf.sparse.retain(weights, keep)
    return tf.sparse.retain(ids, keep), weights


def _lengths(ids: Any) -> Any:
    """Returns [batch] int64: one more than the last position at which there was a value."""
    found = tf.math.unsorted_segment_max(
        ids.indices[:, 1] + 1, ids.indices[:, 0], ids.dense_shape[0]
    )
    return tf.maximum(found, 0)
