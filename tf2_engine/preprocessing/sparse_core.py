"""Prepares ids for stock's TPUEmbeddingV2 on SparseCores: sorted, one row per activation."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tf2_engine.preprocessing.categorical import Column
from tf2_engine.preprocessing.module import Prepared, Preprocessing
from tf2_engine.types import Ids, SparseTensor


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
    """Converts raw features to ids for TPUs with SparseCores.

    Computes the ids and weights of `Preprocessing`, but as SparseTensors of rank 2, sorted by
    sample. A sequence has one row per position, [batch * T, ids per position], and is cut after T
    positions. The FeatureConfig of a sequence must have the output shape [batch, T].

    Args:
        columns: maps each feature to the column that computes the feature's ids.
        sequences: maps each sequence feature to its length T.
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
