"""Columns whose ids are positions in a vocabulary, which is a list or a file."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.preprocessing.categorical import Column, check_dtype
from tf2_engine.preprocessing.raw_features import RawFeatures
from tf2_engine.types import DType, Object, SparseTensor


@dataclasses.dataclass(frozen=True)
class _Vocabulary(Column):
    """Base of both: other values become an id of `num_oov_buckets`, or `default_value`."""

    key: str

    @property
    def _dtype(self) -> DType:
        raise NotImplementedError

    def ids(self, features: RawFeatures) -> SparseTensor:
        sparse = features.sparse(self.key)
        check_dtype(self.key, self._dtype, sparse.dtype)
        values = sparse.values if sparse.dtype == tf.string else tf.cast(sparse.values, tf.int64)
        return sparse.with_values(features.tables[self].lookup(values))

    def _table(self, initializer: Object, num_oov_buckets: int, default_value: int) -> Object:
        if num_oov_buckets:
            if default_value != -1:
                raise errors.InvalidSpec(
                    f"Feature {self.key!r}: `default_value`={default_value} and "
                    f"`num_oov_buckets`={num_oov_buckets} exclude each other; drop one of them."
                )
            return tf.lookup.StaticVocabularyTable(
                initializer, num_oov_buckets, lookup_key_dtype=initializer.key_dtype
            )
        return tf.lookup.StaticHashTable(initializer, default_value)


@dataclasses.dataclass(frozen=True)
class VocabularyList(_Vocabulary):
    """Positions in a list of values, as in `categorical_column_with_vocabulary_list`.

    Attributes:
        key: of the feature.
        vocabulary: strings or integers; the id is the position.
        num_oov_buckets: other values become one of so many ids after the vocabulary, by hash.
        default_value: their id if there are no such buckets; -1 omits them.
    """

    vocabulary: tuple[str | bytes | int, ...]
    num_oov_buckets: int = 0
    default_value: int = -1

    @property
    def _dtype(self) -> DType:
        return tf.string if isinstance(self.vocabulary[0], str | bytes) else tf.int64

    def make_table(self) -> Object:
        keys = tf.constant(self.vocabulary, self._dtype)
        places = tf.range(len(self.vocabulary), dtype=tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(keys, places)
        return self._table(initializer, self.num_oov_buckets, self.default_value)


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

    vocabulary_file: str
    vocabulary_size: int
    num_oov_buckets: int = 0
    default_value: int = -1
    dtype: DType = tf.string
    file_format: str | None = None

    @property
    def _dtype(self) -> DType:
        return self.dtype

    def make_table(self) -> Object:
        key_dtype = tf.string if self.dtype == tf.string else tf.int64
        initializer: Object
        if self.file_format == "tfrecord_gzip":
            initializer = self._from_records(key_dtype)
        else:
            initializer = tf.lookup.TextFileInitializer(
                self.vocabulary_file,
                key_dtype,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
                vocab_size=self.vocabulary_size,
            )
        return self._table(initializer, self.num_oov_buckets, self.default_value)

    def _from_records(self, key_dtype: DType) -> Object:
        records = tf.data.TFRecordDataset(self.vocabulary_file, "GZIP").take(self.vocabulary_size)
        keys = tf.constant(list(records.as_numpy_iterator()), tf.string)
        if len(keys) < self.vocabulary_size:
            raise errors.InvalidSpec(
                f"Feature {self.key!r}: {self.vocabulary_file} has {len(keys)} records, but "
                f"`vocabulary_size` is {self.vocabulary_size}."
            )
        if key_dtype != tf.string:
            keys = tf.strings.to_number(keys, key_dtype)
        return tf.lookup.KeyValueTensorInitializer(keys, tf.range(len(keys), dtype=tf.int64))
