"""One class for each kind of input that feature columns know; each says which ids it makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.preprocessing.inputs import Inputs, to_sparse


@dataclasses.dataclass(frozen=True)
class Column:
    """What all kinds have: settings alone, so that they print as the code that makes them."""

    @property
    def parts(self) -> tuple[Column, ...]:
        """The columns that this one is made of."""
        return ()

    @property
    def is_sequence(self) -> bool:
        """Whether the second dimension of the ids counts positions, which are not combined."""
        return False

    def make_table(self) -> Any:
        """Returns a lookup table, which is made once; None if the column needs none."""
        return None

    def ids(self, inputs: Inputs) -> Any:
        """Returns ids as the feature column makes them, a SparseTensor [batch, ...] of int64.

        Values outside of a vocabulary may be -1.
        """
        raise NotImplementedError

    def weights(self, inputs: Inputs) -> Any:
        """Returns the weights of the ids, a SparseTensor of float32; None if there are none."""
        return None


@dataclasses.dataclass(frozen=True)
class Identity(Column):
    """Integers that are ids already, as in `categorical_column_with_identity`.

    Attributes:
        key: of the feature; int32 or int64, dense, sparse or ragged.
        num_buckets: ids are below it.
        default_value: takes the place of values outside; None leaves them, and the engine refuses.
    """

    key: str
    num_buckets: int
    default_value: int | None = None

    def ids(self, inputs: Inputs) -> Any:
        sparse = inputs.sparse(self.key)
        if not sparse.dtype.is_integer:
            raise errors.WrongType(
                f"Feature {self.key!r}: ids must be integers, got {sparse.dtype.name}."
            )
        values = tf.cast(sparse.values, tf.int64)
        if self.default_value is not None:
            outside = (values < 0) | (values >= self.num_buckets)
            values = tf.where(outside, tf.constant(self.default_value, tf.int64), values)
        return sparse.with_values(values)


@dataclasses.dataclass(frozen=True)
class Hashed(Column):
    """Strings or integers by their hash, as in `categorical_column_with_hash_bucket`.

    Attributes:
        key: of the feature.
        hash_bucket_size: number of ids.
        dtype: tf.string, or an integer type; integers are hashed as they are written.
    """

    key: str
    hash_bucket_size: int
    dtype: Any = tf.string

    def ids(self, inputs: Inputs) -> Any:
        sparse = inputs.sparse(self.key)
        check_kind(self.key, self.dtype, sparse.dtype)
        text = sparse.values if sparse.dtype == tf.string else tf.strings.as_string(sparse.values)
        return sparse.with_values(tf.strings.to_hash_bucket_fast(text, self.hash_bucket_size))


@dataclasses.dataclass(frozen=True)
class Bucketized(Column):
    """Numbers by the interval they lie in, as in `bucketized_column`.

    Attributes:
        key: of the feature, a dense tensor [batch, n] or [batch].
        boundaries: ascending; there is one bucket more. Each of the n numbers has its own buckets.
        normalizer_fn: called with the numbers first; None is nothing.
    """

    key: str
    boundaries: tuple[float, ...]
    normalizer_fn: Callable[[Any], Any] | None = None

    def ids(self, inputs: Inputs) -> Any:
        numbers = inputs.dense(self.key)
        if self.normalizer_fn is not None:
            numbers = self.normalizer_fn(numbers)
        numbers = tf.cast(numbers, tf.float32)
        if numbers.shape.rank != 2 or numbers.shape[1] is None:
            raise errors.InvalidInput(
                f"Feature {self.key!r}: numbers that are put into buckets must be [batch, n] with "
                f"a known n, got shape {numbers.shape}."
            )
        buckets = tf.raw_ops.Bucketize(input=numbers, boundaries=list(self.boundaries))
        position = tf.range(numbers.shape[1], dtype=tf.int64)
        ids = tf.cast(buckets, tf.int64) + position * (len(self.boundaries) + 1)
        return to_sparse(ids)


@dataclasses.dataclass(frozen=True)
class Crossed(Column):
    """Combinations of several features by their hash, as in `crossed_column`.

    Attributes:
        keys: names of raw features, of strings or integers, or columns.
        hash_bucket_size: number of ids.
        hash_key: of the hash; None is its default.
    """

    keys: tuple[str | Column, ...]
    hash_bucket_size: int
    hash_key: int | None = None

    @property
    def parts(self) -> tuple[Column, ...]:
        return tuple(key for key in self.keys if isinstance(key, Column))

    def ids(self, inputs: Inputs) -> Any:
        # Dense features keep '' and -1 here: that is what feature columns do.
        crossed = [
            inputs.raw(key) if isinstance(key, str) else key.ids(inputs) for key in self.leaves()
        ]
        return tf.sparse.cross_hashed(crossed, self.hash_bucket_size, self.hash_key)

    def leaves(self) -> tuple[str | Column, ...]:
        """Returns the keys, those of inner crosses in the place of these."""
        found: list[str | Column] = []
        for key in self.keys:
            found.extend(key.leaves() if isinstance(key, Crossed) else (key,))
        return tuple(found)


@dataclasses.dataclass(frozen=True)
class Weighted(Column):
    """Ids with a weight each, as in `weighted_categorical_column`.

    Attributes:
        column: makes the ids.
        weight_key: the feature that holds the weights. In a dense one, 0 is no weight, and there
            must be one for each id that is present.
    """

    column: Column
    weight_key: str

    @property
    def parts(self) -> tuple[Column, ...]:
        return (self.column,)

    @property
    def is_sequence(self) -> bool:
        return self.column.is_sequence

    def ids(self, inputs: Inputs) -> Any:
        return self.column.ids(inputs)

    def weights(self, inputs: Inputs) -> Any:
        weights = to_sparse(inputs.raw(self.weight_key), nothing=0)
        weights = weights.with_values(tf.cast(weights.values, tf.float32))
        return _flat_positions(weights) if self.is_sequence else weights


@dataclasses.dataclass(frozen=True)
class Sequence(Column):
    """Ids that are not combined, as in the `sequence_categorical_column_...` functions.

    Attributes:
        column: makes the ids, [batch, T] or [batch, T, n].
    """

    column: Column

    @property
    def parts(self) -> tuple[Column, ...]:
        return (self.column,)

    @property
    def is_sequence(self) -> bool:
        return True

    def ids(self, inputs: Inputs) -> Any:
        return _flat_positions(self.column.ids(inputs))

    def weights(self, inputs: Inputs) -> Any:
        weights = self.column.weights(inputs)
        return None if weights is None else _flat_positions(weights)


def _flat_positions(sparse: Any) -> Any:
    """Returns [batch, T, everything else], or [batch, T] as it is."""
    if sparse.shape.rank <= 3:
        return sparse
    shape = sparse.dense_shape
    return tf.sparse.reshape(sparse, [shape[0], shape[1], tf.reduce_prod(shape[2:])])


def check_kind(key: str, wanted: Any, found: Any) -> None:
    """Raises WrongType if a feature has strings where integers are expected, or the reverse."""
    if wanted.is_integer != found.is_integer or not (found.is_integer or found == tf.string):
        raise errors.WrongType(
            f"Feature {key!r}: its column is for {wanted.name}, but the batch has {found.name}."
        )
