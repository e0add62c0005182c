"""The features of one batch, as columns read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf2_engine import errors


class Inputs:
    """Raw features of one batch, each at least of rank 2, and the lookup tables of the columns.

    Args:
        features: Tensors, SparseTensors or RaggedTensors, the batch first.
        tables: by column, what looks its vocabulary up.
    """

    def __init__(self, features: Mapping[str, Any], tables: Mapping[Any, Any]) -> None:
        self._features = features
        self.tables = tables
        self._read: dict[str, Any] = {}

    def raw(self, key: str) -> Any:
        """Returns a feature; one of rank 1 becomes [batch, 1].

        Raises:
            InvalidInput: there is no such feature, or it is a scalar.
        """
        if key not in self._read:
            self._read[key] = self._of_rank_2(key)
        return self._read[key]

    def dense(self, key: str) -> Any:
        """Returns a feature that must be a Tensor.

        Raises:
            WrongType: it is sparse or ragged.
        """
        value = self.raw(key)
        if isinstance(value, tf.SparseTensor):
            raise errors.WrongType(
                f"Feature {key!r}: numbers that are put into buckets must be a dense Tensor, got "
                f"{type(self._features[key]).__name__}. Pass them as one, filled up where they are "
                "missing."
            )
        return value

    def sparse(self, key: str) -> Any:
        """Returns a feature as a SparseTensor, without what stands for nothing: '' and -1."""
        return to_sparse(self.raw(key))

    def _of_rank_2(self, key: str) -> Any:
        if key not in self._features:
            raise errors.InvalidInput(
                f"Feature {key!r} is missing; there are {sorted(self._features)}."
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


def to_sparse(value: Any, nothing: Any = None) -> Any:
    """Returns a SparseTensor without the cells that hold `nothing`; sparse ones as they are.

    Args:
        nothing: None is '' for strings and -1 for integers.
    """
    if isinstance(value, tf.SparseTensor):
        return value
    if nothing is None:
        nothing = "" if value.dtype == tf.string else -1
    # In a `tf.Graph`, `!=` would ask whether it is the same tensor.
    present = tf.where(tf.not_equal(value, tf.cast(nothing, value.dtype)))
    shape = tf.shape(value, out_type=tf.int64)
    sparse = tf.SparseTensor(present, tf.gather_nd(value, present), shape)
    sparse.set_shape(value.shape)
    return sparse
