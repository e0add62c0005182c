"""The categorical columns: one class for each feature column that returns ids."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.preprocessing.raw_features import RawFeatures, to_sparse
from tf2_engine.types import DType, Object, SparseTensor, Tensor


@dataclasses.dataclass(frozen=True)
class Column:
    """Base class of columns. A column consists of settings; its `repr` is code that creates it."""

    @property
    def parts(self) -> tuple[Column, ...]:
        settings = (getattr(self, field.name) for field in dataclasses.fields(self))
        values = itertools.chain(
            *(each if isinstance(each, tuple) else [each] for each in settings)
        )
        return tuple(value for value in values if isinstance(value, Column))

    @property
    def is_sequence(self) -> bool:
        """Whether the ids' second dimension counts the positions of a sequence."""
        return False

    def make_table(self) -> Object:
        return None

    def ids(self, features: RawFeatures) -> SparseTensor:
        """Computes the ids of the feature column, [batch, ...] int64; unknown values are -1."""
        raise NotImplementedError

    def weights(self, features: RawFeatures) -> SparseTensor | None:
        return None


@dataclasses.dataclass(frozen=True)
class Identity(Column):
    """Integers that are already ids, as in `categorical_column_with_identity`.

    Attributes:
        key: the feature, int32 or int64; dense, sparse or ragged.
        num_buckets: the number of ids, which start at 0.
        default_value: replaces ids that are out of range. With None the engine raises an error.
        padding: the value that means "no id" in a dense feature, instead of -1.
    """

    key: str
    num_buckets: int
    default_value: int | None = None
    padding: int | None = None

    def ids(self, features: RawFeatures) -> SparseTensor:
        sparse = features.sparse(self.key, self.padding)
        if not sparse.dtype.is_integer:
            raise errors.WrongType(
                f"Feature {self.key!r}: ids must be integers, got {sparse.dtype.name}. Identity "
                "columns and TPU embedding columns take ids unchanged: look up or hash strings in "
                "the input_fn."
            )
        values = tf.cast(sparse.values, tf.int64)
        if self.default_value is not None:
            outside = (values < 0) | (values >= self.num_buckets)
            values = tf.where(outside, tf.constant(self.default_value, tf.int64), values)
        return sparse.with_values(values)


class _Vocabulary(Column):
    key: str
    num_oov_buckets: int
    default_value: int

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    def ids(self, features: RawFeatures) -> SparseTensor:
        sparse = features.sparse(self.key)
        check_dtype(self.key, self.dtype, sparse.dtype)
        values = sparse.values if sparse.dtype == tf.string else tf.cast(sparse.values, tf.int64)
        return sparse.with_values(features.tables[self].lookup(values))

    def _table(self, initializer: Object) -> Object:
        if not self.num_oov_buckets:
            return tf.lookup.StaticHashTable(initializer, self.default_value)
        if self.default_value != -1:
            raise errors.InvalidSpec(
                f"Feature {self.key!r}: `default_value`={self.default_value} and "
                f"`num_oov_buckets`={self.num_oov_buckets} exclude each other; drop one of them."
            )
        return tf.lookup.StaticVocabularyTable(
            initializer, self.num_oov_buckets, lookup_key_dtype=initializer.key_dtype
        )


@dataclasses.dataclass(frozen=True)
class VocabularyList(_Vocabulary):
    """Positions in a list of values, as in `categorical_column_with_vocabulary_list`.

    Attributes:
        vocabulary: strings or integers. The id of a value is its position.
        num_oov_buckets: the number of ids after the vocabulary, to which unknown values are hashed.
        default_value: the id of unknown values if `num_oov_buckets` is 0. -1 drops them.
    """

    key: str
    vocabulary: tuple[str | bytes | int, ...]
    num_oov_buckets: int = 0
    default_value: int = -1

    def __post_init__(self) -> None:
        _make_tuple(self, "vocabulary")

    @property
    def dtype(self) -> DType:
        return tf.string if isinstance(self.vocabulary[0], str | bytes) else tf.int64

    def make_table(self) -> Object:
        return self._table(_positions(tf.constant(self.vocabulary, self.dtype)))


@dataclasses.dataclass(frozen=True)
class VocabularyFile(_Vocabulary):
    """Positions in a file of values, as in `categorical_column_with_vocabulary_file`.

    Attributes:
        vocabulary_file: a file with one value per line or record. It becomes an asset of a
            SavedModel.
        vocabulary_size: the number of values to read.
        num_oov_buckets, default_value: as in `VocabularyList`.
        dtype: tf.string or tf.int64.
        file_format: None for text, or "tfrecord_gzip" for a compressed TFRecord file, which is read
            when the table is created.
    """

    key: str
    vocabulary_file: str
    vocabulary_size: int
    num_oov_buckets: int = 0
    default_value: int = -1
    dtype: DType = tf.string
    file_format: str | None = None

    def make_table(self) -> Object:
        key_dtype = tf.string if self.dtype == tf.string else tf.int64
        if self.file_format == "tfrecord_gzip":
            return self._table(_positions(self._read_records(key_dtype)))
        initializer = tf.lookup.TextFileInitializer(
            self.vocabulary_file,
            key_dtype,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
            vocab_size=self.vocabulary_size,
        )
        return self._table(initializer)

    def _read_records(self, key_dtype: DType) -> Tensor:
        records = tf.data.TFRecordDataset(self.vocabulary_file, "GZIP").take(self.vocabulary_size)
        keys = tf.constant(list(records.as_numpy_iterator()), tf.string)
        if len(keys) < self.vocabulary_size:
            raise errors.InvalidSpec(
                f"Feature {self.key!r}: {self.vocabulary_file} has {len(keys)} records, but "
                f"`vocabulary_size` is {self.vocabulary_size}."
            )
        return keys if key_dtype == tf.string else tf.strings.to_number(keys, key_dtype)


@dataclasses.dataclass(frozen=True)
class Hashed(Column):
    """Hashes of strings or integers, as in `categorical_column_with_hash_bucket`.

    Attributes:
        dtype: tf.string, or an integer type. Integers are hashed as decimal strings.
    """

    key: str
    hash_bucket_size: int
    dtype: DType = tf.string

    def ids(self, features: RawFeatures) -> SparseTensor:
        sparse = features.sparse(self.key)
        check_dtype(self.key, self.dtype, sparse.dtype)
        text = sparse.values if sparse.dtype == tf.string else tf.strings.as_string(sparse.values)
        return sparse.with_values(tf.strings.to_hash_bucket_fast(text, self.hash_bucket_size))


@dataclasses.dataclass(frozen=True)
class Bucketized(Column):
    """Indices of the intervals that contain numbers, as in `tf.feature_column.bucketized_column`.

    Attributes:
        key: the feature, a dense tensor [batch, n] or [batch]. Each of the n numbers has buckets of
            its own.
        boundaries: in ascending order. There is one more bucket than boundaries.
        normalizer_fn: a function that is applied to the numbers first, or None.
        default_value: the number for Examples without the feature, or None to raise an error.
        dtype: the type in Examples.
    """

    key: str
    boundaries: tuple[float, ...]
    normalizer_fn: Callable[[Tensor], Tensor] | None = None
    default_value: Object = None
    dtype: DType = tf.float32

    def __post_init__(self) -> None:
        _make_tuple(self, "boundaries")

    def ids(self, features: RawFeatures) -> SparseTensor:
        numbers = features.dense(self.key)
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
    """Hashes of combinations of several features, as in `crossed_column`.

    Attributes:
        keys: columns, or names of raw features with strings or integers.
        hash_key: the key of the hash; None is TensorFlow's default.
    """

    keys: tuple[str | Column, ...]
    hash_bucket_size: int
    hash_key: int | None = None

    def __post_init__(self) -> None:
        _make_tuple(self, "keys")
        _refuse_weights(self)

    def ids(self, features: RawFeatures) -> SparseTensor:
        # As in feature columns, '' and -1 in dense features are values here.
        crossed = [
            features.raw(key) if isinstance(key, str) else key.ids(features)
            for key in self.leaves()
        ]
        return tf.sparse.cross_hashed(crossed, self.hash_bucket_size, self.hash_key)

    def leaves(self) -> tuple[str | Column, ...]:
        return tuple(
            leaf
            for key in self.keys
            for leaf in (key.leaves() if isinstance(key, Crossed) else (key,))
        )


@dataclasses.dataclass(frozen=True)
class Weighted(Column):
    """Ids with weights, as in `weighted_categorical_column`.

    Attributes:
        weight_key: the feature that contains the weights, one per id. In a dense feature, 0 means
            that there is no weight.
        dtype: the type of the weights in Examples; they are converted to float32.
    """

    column: Column
    weight_key: str
    dtype: DType = tf.float32

    def __post_init__(self) -> None:
        _refuse_weights(self)

    @property
    def is_sequence(self) -> bool:
        return self.column.is_sequence

    def ids(self, features: RawFeatures) -> SparseTensor:
        return self.column.ids(features)

    def weights(self, features: RawFeatures) -> SparseTensor | None:
        weights = to_sparse(features.raw(self.weight_key), missing=0)
        weights = weights.with_values(tf.cast(weights.values, tf.float32))
        return _flat_positions(weights) if self.is_sequence else weights


@dataclasses.dataclass(frozen=True)
class Sequence(Column):
    """Ids that are not combined, as in the `sequence_categorical_column_...` functions.

    Attributes:
        column: the column of the ids, [batch, T] or [batch, T, n].
    """

    column: Column
    is_sequence = True

    def ids(self, features: RawFeatures) -> SparseTensor:
        return _flat_positions(self.column.ids(features))

    def weights(self, features: RawFeatures) -> SparseTensor | None:
        weights = self.column.weights(features)
        return None if weights is None else _flat_positions(weights)


def _flat_positions(sparse: SparseTensor) -> SparseTensor:
    if sparse.shape.rank <= 3:
        return sparse
    shape = sparse.dense_shape
    return tf.sparse.reshape(sparse, [shape[0], shape[1], tf.reduce_prod(shape[2:])])


def check_dtype(key: str, expected: DType, dtype: DType) -> None:
    if expected.is_integer != dtype.is_integer or not (dtype.is_integer or dtype == tf.string):
        raise errors.WrongType(
            f"Feature {key!r}: its column is for {expected.name}, but the batch has {dtype.name}."
        )


def _refuse_weights(column: Column) -> None:
    for part in column.parts:
        if isinstance(part, Weighted):
            raise errors.InvalidSpec(
                f"{type(column).__name__} contains ids weighted by {part.weight_key!r}: these "
                f"weights would be lost. Make the column from {part.column!r} instead."
            )


def _make_tuple(column: Column, name: str) -> None:
    values = getattr(column, name)
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise errors.WrongType(
            f"{type(column).__name__}: `{name}` must be a list or a tuple, got {values!r}."
        )
    object.__setattr__(column, name, tuple(values))


def _positions(keys: Tensor) -> Object:
    return tf.lookup.KeyValueTensorInitializer(keys, tf.range(tf.size(keys, tf.int64)))
