"""Converts the raw features of a batch to the tensors that columns read, and splits strings."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.types import Ids, Nest, Object, SparseTensor, Tensor, TensorLike


class RawFeatures:
    """The raw features of a batch, each of rank 2 or more, and the columns' lookup tables."""

    def __init__(self, features: Mapping[str, Ids], tables: Mapping[Object, Object]) -> None:
        self._features = features
        self.tables = tables
        self._of_rank_2: dict[str, Ids] = {}

    def raw(self, key: str) -> Ids:
        """Returns a dense or sparse feature; [batch] becomes [batch, 1]."""
        if key not in self._of_rank_2:
            self._of_rank_2[key] = self._read(key)
        return self._of_rank_2[key]

    def dense(self, key: str) -> Tensor:
        value: Object = self.raw(key)
        if isinstance(value, tf.SparseTensor):
            raise errors.WrongType(
                f"Feature {key!r}: numbers that are put into buckets must be a dense Tensor, got "
                f"{type(self._features[key]).__name__}. Pass a dense tensor of numbers."
            )
        return value

    def sparse(self, key: str, missing: int | None = None) -> SparseTensor:
        return to_sparse(self.raw(key), missing)

    def _read(self, key: str) -> Ids:
        if key not in self._features:
            raise errors.InvalidInput(
                f"Feature {key!r} is missing; the features are {sorted(self._features)}."
            )
        value = self._features[key]
        if isinstance(value, tf.RaggedTensor):
            value = value.to_sparse()
        elif not isinstance(value, tf.SparseTensor):
            value = tf.convert_to_tensor(value)
        rank = value.shape.rank
        if rank is None or rank == 0:
            raise errors.InvalidInput(
                f"Feature {key!r} must have a known rank of at least 1, got shape {value.shape}."
            )
        if rank > 1:
            return value
        if isinstance(value, tf.SparseTensor):
            return tf.sparse.reshape(value, [value.dense_shape[0], 1])
        return value[:, tf.newaxis]


def to_sparse(value: Ids, missing: int | str | None = None) -> SparseTensor:
    """Converts a feature to a SparseTensor. Drops `missing` values, by default '' and -1."""
    if isinstance(value, tf.SparseTensor):
        return value
    if missing is None:
        missing = "" if value.dtype == tf.string else -1
    # In a `tf.Graph`, `!=` would compare the identity of tensors.
    present = tf.where(tf.not_equal(value, tf.cast(missing, value.dtype)))
    shape = tf.shape(value, out_type=tf.int64)
    sparse = tf.SparseTensor(present, tf.gather_nd(value, present), shape)
    sparse.set_shape(value.shape)
    return sparse


def split_words(
    strings: TensorLike, separators: str = " ", *, keep_empty: bool = False
) -> SparseTensor:
    """Splits strings, [samples], into words, [samples, largest number of words], like TensorFlow 1.

    `tf.strings.split` differs: it returns an empty word for an empty string and between adjacent
    separators, treats several characters as one separator, and by default also splits at tabs and
    line breaks.

    Args:
        separators: the characters that separate words. If empty, each character is a word.
        keep_empty: whether there is an empty word between adjacent separators.
    """
    return tf.SparseTensor(
        *tf.raw_ops.StringSplit(input=strings, delimiter=separators, skip_empty=not keep_empty)
    )


def cut_sequences(ids: Nest, length: int) -> Nest:
    """Cuts and pads sparse and ragged ids, or weights, to sequences of one length.

    The result is a SparseTensor [batch, length, ...]. Dense ids are returned unchanged.
    """
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_sparse()
    if not isinstance(ids, tf.SparseTensor):
        return ids
    kept = tf.sparse.retain(ids, ids.indices[:, 1] < length)
    shape = tf.concat([ids.dense_shape[:1], [length], ids.dense_shape[2:]], 0)
    return tf.SparseTensor(kept.indices, kept.values, shape)
