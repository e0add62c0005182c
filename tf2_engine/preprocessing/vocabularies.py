"""Columns whose ids are positions in a vocabulary, which is a list or a file."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.preprocessing.categorical import Column, check_dtype
from tf2_engine.preprocessing.raw_features import RawFeatures
from tf2_engine.types import DType, Object, SparseTensor, Tensor


class _Vocabulary(Column):
    """Base of both: other values become an id of `num_oov_buckets`, or `default_value`."""

    key: str
    num_oov_buckets: int
    default_value: int

    @property
    def dtype(self) -> DType:
        """The type of the values: tf.string or an integer type."""
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
        key: of the feature.
        vocabulary: strings or integers; the id is the position.
        num_oov_buckets: other values become one of so many ids after the vocabulary, by hash.
        default_value: their id if there are no such buckets; -1 omits them.
    """

    key: str
    vocabulary: tuple[str | bytes | int, ...]
    num_oov_buckets: int = 0
    default_value: int = -1

    @property
    def dtype(self) -> DType:
        return tf.string if isinstance(self.vocabulary[0], str | bytes) else tf.int64

    def make_table(self) -> Object:
        return self._table(_positions(tf.constant(self.vocabulary, self.dtype)))


@dataclasses.dataclass(frozen=True)
class VocabularyFile(_Vocabulary):
    """Positions in a file of values, as in `categorical_column_with_vocabulary_file`.

    Attributes:
        key: of the feature.
        vocabulary_file: one value per line, or per record; part of a SavedModel as an asset.
        vocabulary_size: the number of values to read.
        num_oov_buckets, default_value: as in `VocabularyList`.
        dtype: tf.string or tf.int64.
        file_format: None means text; "tfrecord_gzip" means a TFRecord file with gzip, which is
            read when the table is made.
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


def _positions(keys: Tensor) -> Object:
    return tf.lookup.KeyValueTensorInitializer(keys, tf.range(tf.size(keys, tf.int64)))
