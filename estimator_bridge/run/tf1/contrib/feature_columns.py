"""The feature columns of `tf.contrib.layers`, and the layer that reads them.

words = sparse_column_with_hash_bucket("words", 1000)
net = input_from_feature_columns(features, [embedding_column(words, 8)])
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import DType, Object, SparseTensor, Tensor

ColumnFeatures = Mapping[object, Object]
IdsAndWeights = tuple[SparseTensor, SparseTensor | None]
"""Ids and their weights, of the same shape; None means weights of 1."""


@dataclasses.dataclass(frozen=True)
class SparseColumn:
    """A column of ids. Its feature contains ids, or values to hash or to look up in a vocabulary.

    Attributes:
        name, weights: the keys of the features with ids and weights.
        length: the number of possible ids.
        keys: the vocabulary; if None, strings and numbers are hashed.
        is_integerized: whether the feature contains the ids themselves.
    """

    name: str
    length: int
    combiner: str
    dtype: DType
    keys: tuple[str, ...] | None = None
    default_value: int = -1
    is_integerized: bool = False
    weights: str | None = None

    @property
    def column_name(self) -> str:
        return self.name if self.weights is None else f"{self.name}_weighted_by_{self.weights}"

    @property
    def order(self) -> tuple[str, ...]:
        """A sort key for the order of TensorFlow 1.15: by its class names, then by column name."""
        if self.weights is not None:
            return "Weighted", *dataclasses.replace(self, weights=None).order, self.weights
        kind = "Integerized" if self.is_integerized else "Hashed" if self.keys is None else "Keys"
        return f"SparseColumn{kind}", self.name

    def ids(self, features: ColumnFeatures) -> IdsAndWeights:
        values = _sparse(features[self.name])
        if self.is_integerized:
            numbers = tf.floormod(tf.cast(values.values, tf.int64), self.length)
        elif self.keys is not None:
            table = tf.lookup.StaticVocabularyTable(
                tf.lookup.KeyValueTensorInitializer(
                    list(self.keys), list(range(len(self.keys))), tf.string, tf.int64
                ),
                num_oov_buckets=1,
            )
            numbers_of_keys = table.lookup(values.values)
            unknown = tf.fill(tf.shape(numbers_of_keys), tf.constant(self.default_value, tf.int64))
            numbers = tf.where(numbers_of_keys < len(self.keys), numbers_of_keys, unknown)
        else:
            texts = values.values
            texts = texts if texts.dtype == tf.string else tf.as_string(texts)
            numbers = tf.string_to_hash_bucket_fast(texts, self.length)
        ids = tf.SparseTensor(values.indices, numbers, values.dense_shape)
        return ids, None if self.weights is None else _sparse(features[self.weights])


@dataclasses.dataclass(frozen=True)
class CrossedColumn:
    """A column of hashed combinations of other columns."""

    columns: tuple[SparseColumn, ...]
    length: int
    combiner: str
    hash_key: int | None

    @property
    def column_name(self) -> str:
        return "_X_".join(sorted(each.column_name for each in self.columns))

    @property
    def order(self) -> tuple[str, ...]:
        return "Crossed", self.column_name

    def ids(self, features: ColumnFeatures) -> IdsAndWeights:
        parts = [each.ids(features)[0] for each in self.columns]
        options = {} if self.hash_key is None else {"hash_key": self.hash_key}
        return tf.sparse.cross_hashed(parts, num_buckets=self.length, **options), None


@dataclasses.dataclass(frozen=True)
class RealColumn:
    """A column of numbers, [batch, dimension]; `normalizer` is applied to the tensor."""

    name: str
    dimension: int
    default_value: Object
    dtype: DType
    normalizer: Object = None

    @property
    def column_name(self) -> str:
        return self.name

    @property
    def order(self) -> tuple[str, ...]:
        return "RealValued", self.name

    def dense(self, features: ColumnFeatures) -> Tensor:
        values = tf.convert_to_tensor(features[self.name])
        if self.normalizer is not None:
            values = self.normalizer(values)
        return tf.reshape(tf.cast(values, tf.float32), [-1, self.dimension])


class _DerivedColumn:
    source: Object
    _KIND: ClassVar[str]
    _SUFFIX: ClassVar[str]

    @property
    def column_name(self) -> str:
        return f"{self.source.column_name}_{self._SUFFIX}"

    @property
    def order(self) -> tuple[str, ...]:
        return self._KIND, *self.source.order


@dataclasses.dataclass(frozen=True)
class BucketizedColumn(_DerivedColumn):
    """A column of numbers, each represented as the one-hot vector of its bucket."""

    source: RealColumn
    boundaries: tuple[float, ...]

    _KIND, _SUFFIX = "Bucketized", "bucketized"

    def dense(self, features: ColumnFeatures) -> Tensor:
        values = self.source.dense(features)
        buckets = tf.raw_ops.Bucketize(input=values, boundaries=list(self.boundaries))
        count = len(self.boundaries) + 1
        return tf.reshape(tf.one_hot(buckets, count), [-1, self.source.dimension * count])


@dataclasses.dataclass(frozen=True)
class OneHotColumn(_DerivedColumn):
    """A column that counts how often each id occurs in a sample."""

    source: SparseColumn

    _KIND, _SUFFIX = "OneHot", "one_hot"

    def dense(self, features: ColumnFeatures) -> Tensor:
        ids, weights = self.source.ids(features)
        rows = tf.sparse_tensor_to_dense(ids, default_value=-1)
        hot = tf.one_hot(rows, self.source.length)
        if weights is not None:
            hot *= tf.expand_dims(tf.sparse_tensor_to_dense(weights), -1)
        return tf.reduce_sum(hot, 1)


@dataclasses.dataclass(frozen=True)
class EmbeddingColumn(_DerivedColumn):
    """A column that looks up ids in the table `<name>_embedding/weights`, and combines the rows."""

    source: SparseColumn | CrossedColumn
    dimension: int
    combiner: str
    initializer: Object
    max_norm: float | None
    trainable: bool

    _KIND, _SUFFIX = "Embedding", "embedding"

    def dense(self, features: ColumnFeatures) -> Tensor:
        """Returns [batch, dimension] float32; zeros for a sample without ids."""
        ids, weights = self.source.ids(features)
        table = tf.get_variable(
            "weights",
            shape=[self.source.length, self.dimension],
            dtype=tf.float32,
            initializer=self.initializer,
            trainable=self.trainable,
            collections=[tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES],
        )
        return tf.nn.safe_embedding_lookup_sparse(
            table, ids, weights, combiner=self.combiner, max_norm=self.max_norm
        )


DenseColumn = RealColumn | BucketizedColumn | OneHotColumn | EmbeddingColumn


def sparse_column_with_hash_bucket(
    column_name: str,
    hash_bucket_size: int,
    combiner: str = "sum",
    dtype: DType = tf.string,
    hash_keys: Object = None,
) -> SparseColumn:
    if hash_keys is not None:
        raise errors.InvalidInput("`hash_keys` of sparse columns is not supported; leave it out.")
    _check_positive("hash_bucket_size", hash_bucket_size)
    return SparseColumn(column_name, hash_bucket_size, combiner, tf.as_dtype(dtype))


def sparse_column_with_integerized_feature(
    column_name: str, bucket_size: int, combiner: str = "sum", dtype: DType = tf.int64
) -> SparseColumn:
    """Makes a column whose feature contains the ids, each taken modulo `bucket_size`."""
    _check_positive("bucket_size", bucket_size)
    return SparseColumn(column_name, bucket_size, combiner, tf.as_dtype(dtype), is_integerized=True)


def sparse_column_with_keys(
    column_name: str,
    keys: Sequence[str],
    default_value: int = -1,
    combiner: str = "sum",
    dtype: DType = tf.string,
) -> SparseColumn:
    """Makes a column of strings; the id of a string is its position in `keys`."""
    return SparseColumn(
        column_name, len(keys), combiner, tf.as_dtype(dtype), tuple(keys), default_value
    )


def weighted_sparse_column(
    sparse_id_column: SparseColumn, weight_column_name: str, dtype: DType = tf.float32
) -> SparseColumn:
    if not tf.as_dtype(dtype).is_floating:
        raise errors.InvalidInput(f"Weights must have a floating-point type, got {dtype}.")
    return dataclasses.replace(sparse_id_column, weights=weight_column_name)


def crossed_column(
    columns: Iterable[SparseColumn],
    hash_bucket_size: int,
    combiner: str = "sum",
    hash_key: int | None = None,
) -> CrossedColumn:
    chosen = tuple(sorted(columns, key=lambda each: each.column_name))
    if len(chosen) < 2 or not all(isinstance(each, SparseColumn) for each in chosen):
        raise errors.InvalidInput(
            f"crossed_column: two or more sparse columns are needed, got {list(chosen)}."
        )
    _check_positive("hash_bucket_size", hash_bucket_size)
    return CrossedColumn(chosen, hash_bucket_size, combiner, hash_key)


def real_valued_column(
    column_name: str,
    dimension: int = 1,
    default_value: Object = None,
    dtype: DType = tf.float32,
    normalizer: Object = None,
) -> RealColumn:
    _check_positive("dimension", dimension)
    return RealColumn(column_name, dimension, default_value, tf.as_dtype(dtype), normalizer)


def bucketized_column(source_column: RealColumn, boundaries: Sequence[float]) -> BucketizedColumn:
    if list(boundaries) != sorted(boundaries) or not boundaries:
        raise errors.InvalidInput(
            f"bucketized_column: boundaries must be a sorted list, got {boundaries!r}."
        )
    return BucketizedColumn(source_column, tuple(dict.fromkeys(boundaries)))


def one_hot_column(sparse_id_column: SparseColumn) -> OneHotColumn:
    return OneHotColumn(sparse_id_column)


def embedding_column(
    sparse_id_column: SparseColumn | CrossedColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Object = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> EmbeddingColumn:
    """Makes a column that looks up the embeddings of ids.

    Args:
        initializer: None means a truncated normal distribution with stddev 1 / sqrt(number of ids),
            as in TensorFlow 1.15.

    Raises:
        InvalidInput: a checkpoint is given.
    """
    if ckpt_to_load_from is not None or tensor_name_in_ckpt is not None:
        raise errors.InvalidInput(
            "embedding_column: `ckpt_to_load_from` is not supported; call "
            "tf.train.init_from_checkpoint in the model_fn."
        )
    if initializer is None:
        stddev = 1 / math.sqrt(sparse_id_column.length)
        initializer = tf.truncated_normal_initializer(mean=0.0, stddev=stddev)
    return EmbeddingColumn(sparse_id_column, dimension, combiner, initializer, max_norm, trainable)


def input_from_feature_columns(
    columns_to_tensors: ColumnFeatures,
    feature_columns: Iterable[DenseColumn],
    weight_collections: Sequence[str] | None = None,
    trainable: bool = True,
    scope: Object = None,
    cols_to_outs: dict[DenseColumn, Tensor] | None = None,
) -> Tensor:
    """Concatenates the tensors of all columns: [batch, sum of dimensions] float32.

    Columns are ordered by kind and name. The table of an embedding is the variable
    `input_from_feature_columns/<name>_embedding/weights`.

    Args:
        weight_collections: additional graph collections to which tables are added.
        cols_to_outs: a dict that is filled with the tensor of each column.

    Raises:
        InvalidInput: a column is not one of this module's dense columns.
    """
    columns = set(feature_columns)
    for column in columns:
        if not hasattr(column, "dense"):
            raise errors.InvalidInput(
                f"input_from_feature_columns: {column!r} is not dense. Pass it to "
                "embedding_column or one_hot_column first; columns of tf.feature_column go into "
                "tf.feature_column.input_layer."
            )
    outputs = []
    values = list(columns_to_tensors.values())
    with tf.variable_scope(scope, "input_from_feature_columns", values):
        for column in sorted(columns, key=lambda each: each.order):
            if not trainable and isinstance(column, EmbeddingColumn):
                column = dataclasses.replace(column, trainable=False)
            with tf.variable_scope(None, column.column_name, values) as opened:
                outputs.append(column.dense(columns_to_tensors))
                for variable in tf.global_variables(opened.name + "/"):
                    tf.add_to_collections(weight_collections or (), variable)
            if cols_to_outs is not None:
                cols_to_outs[column] = outputs[-1]
        return tf.concat(outputs, 1)


def _sparse(values: Object) -> SparseTensor:
    if isinstance(values, tf.SparseTensor):
        return values
    values = tf.convert_to_tensor(values)
    if values.shape.rank == 1:
        values = tf.expand_dims(values, 1)
    empty = "" if values.dtype == tf.string else -1
    indices = tf.where(tf.not_equal(values, empty))
    shape = tf.shape(values, out_type=tf.int64)
    return tf.SparseTensor(indices, tf.gather_nd(values, indices), shape)


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise errors.InvalidInput(f"`{name}` must be at least 1, got {value}.")
