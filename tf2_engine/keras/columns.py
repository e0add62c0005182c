"""Columns of a model. They say how to parse features, compute ids, and look ids up in tables."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf2_engine import errors, preprocessing
from tf2_engine.types import DType, Initializer, Object, SparseTensor, Tensor, Variable

_TableConfig = tf.tpu.experimental.embedding.TableConfig
_FeatureConfig = tf.tpu.experimental.embedding.FeatureConfig


@dataclasses.dataclass(frozen=True)
class TableColumn:
    """A feature that is looked up in one of the engine's tables.

    Attributes:
        ids: the column that computes the ids from raw features.
        max_sequence_length: the length to which sequences are cut or padded; 0 if the feature is
            not a sequence.
        suffix: the end of the column's name. `DenseFeatures` sorts columns by name.
    """

    ids: preprocessing.Column
    table: Object
    max_sequence_length: int = 0
    suffix: str = "embedding"

    @property
    def key(self) -> str:
        return key_of(self.ids)

    @property
    def name(self) -> str:
        return f"{name_of(self.ids)}_{self.suffix}"

    @property
    def weight_key(self) -> str | None:
        ids = self.ids.column if isinstance(self.ids, preprocessing.Sequence) else self.ids
        return ids.weight_key if isinstance(ids, preprocessing.Weighted) else None

    @property
    def feature_config(self) -> Object:
        length = self.max_sequence_length
        return _FeatureConfig(self.table, max_sequence_length=length, name=self.key)


def embedding_column(
    categorical_column: preprocessing.Column,
    dimension: int,
    combiner: str = "mean",
    initializer: Initializer | None = None,
    max_sequence_length: int = 0,
) -> TableColumn:
    """Creates a feature with its own table, named `tbl_` plus the column's name.

    Args:
        initializer: by default a truncated normal distribution with standard deviation
            1 / sqrt(dimension).
    """
    name, rows = f"tbl_{name_of(categorical_column)}", num_buckets(categorical_column)
    table = _TableConfig(rows, dimension, initializer, None, combiner, name)
    return TableColumn(categorical_column, table, max_sequence_length)


def shared_embedding_columns(
    categorical_columns: Sequence[preprocessing.Column],
    dimension: int,
    combiner: str = "mean",
    initializer: Initializer | None = None,
    shared_embedding_collection_name: str | None = None,
    max_sequence_lengths: Sequence[int] | None = None,
) -> list[TableColumn]:
    """Creates features that share a table, named `tbl_` plus the collection's name.

    Args:
        shared_embedding_collection_name: by default the names of the columns, joined by "_".
        max_sequence_lengths: one length per column; by default 0 for every column.
    """
    joined = "_".join(sorted(map(name_of, categorical_columns))) + "_shared_embedding"
    name, rows = shared_embedding_collection_name or joined, num_buckets(categorical_columns[0])
    table = _TableConfig(rows, dimension, initializer, None, combiner, f"tbl_{name}")
    lengths = max_sequence_lengths or [0] * len(categorical_columns)
    return [
        TableColumn(ids, table, length, "shared_embedding")
        for ids, length in zip(categorical_columns, lengths, strict=True)
    ]


def id_column(
    key: str, table: Object, max_sequence_length: int = 0, weight_key: str | None = None
) -> TableColumn:
    """Creates a feature whose values are already row ids of the table."""
    ids: preprocessing.Column = preprocessing.Identity(key, table.vocabulary_size)
    if weight_key is not None:
        ids = preprocessing.Weighted(ids, weight_key)
    if max_sequence_length:
        ids = preprocessing.Sequence(ids)
    return TableColumn(ids, table, max_sequence_length)


class _Numbers:
    key: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        object.__setattr__(self, "shape", shape)

    @property
    def name(self) -> str:
        return self.key


@dataclasses.dataclass(frozen=True)
class Numeric(_Numbers):
    """A numeric feature, [batch] or [batch, ...], like `tf.feature_column.numeric_column`.

    Attributes:
        normalizer_fn: a function that is applied to the feature, or None.
        shape: the feature's shape in one example, for `parse_example_spec`.
        default_value: the value for Examples that lack the feature. If it is None, such Examples
            cause an error.
        dtype: the type in Examples. The layers accept any numeric type.
    """

    key: str
    normalizer_fn: Callable[[Tensor], Tensor] | None = None
    shape: tuple[int, ...] = (1,)
    default_value: Object = None
    dtype: DType = tf.float32


@dataclasses.dataclass(frozen=True)
class SequenceNumeric(_Numbers):
    """Numbers for each step of a sequence, like `tf.feature_column.sequence_numeric_column`.

    Attributes:
        key: the key of a SparseTensor, [batch, steps * numbers per step] or [batch, steps, ...].
        shape: the shape of the numbers in one step.
        default_value: the value of missing numbers, and of steps after a sequence's end.
        dtype, normalizer_fn: as in `Numeric`, but `normalizer_fn` gets the SparseTensor.
    """

    key: str
    shape: tuple[int, ...] = (1,)
    default_value: float = 0.0
    dtype: DType = tf.float32
    normalizer_fn: Callable[[SparseTensor], SparseTensor] | None = None


@dataclasses.dataclass(frozen=True)
class Indicator:
    """Counts of each id per example or sequence step, like `tf.feature_column.indicator_column`."""

    ids: preprocessing.Column

    @property
    def name(self) -> str:
        return f"{name_of(self.ids)}_indicator"


@dataclasses.dataclass(frozen=True)
class PlainEmbedding:
    """A feature whose table is a model variable, as with `tf.feature_column.embedding_column`."""

    categorical_column: preprocessing.Column
    dimension: int
    combiner: str = "mean"
    initializer: Initializer | None = None

    @property
    def ids(self) -> preprocessing.Column:
        return self.categorical_column

    @property
    def name(self) -> str:
        return f"{name_of(self.ids)}_embedding"


ModelColumn = (
    TableColumn | Numeric | SequenceNumeric | Indicator | PlainEmbedding | preprocessing.Column
)


def scope_name(column: ModelColumn) -> str:
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", column_name(column))


def column_name(column: ModelColumn) -> str:
    return name_of(column) if isinstance(column, preprocessing.Column) else column.name


def name_of(column: preprocessing.Column) -> str:
    if isinstance(column, preprocessing.Sequence):
        return name_of(column.column)
    if isinstance(column, preprocessing.Weighted):
        return f"{name_of(column.column)}_weighted_by_{column.weight_key}"
    if isinstance(column, preprocessing.Bucketized):
        return f"{column.key}_bucketized"
    if isinstance(column, preprocessing.Crossed):
        names = (each if isinstance(each, str) else name_of(each) for each in column.keys)
        return "_X_".join(sorted(names))
    return key_of(column)


def key_of(column: preprocessing.Column) -> str:
    if isinstance(column, (preprocessing.Sequence, preprocessing.Weighted)):
        return key_of(column.column)
    if isinstance(column, preprocessing.Crossed):
        return name_of(column)
    key: str = column.key  # type: ignore[attr-defined]
    return key


def num_buckets(column: preprocessing.Column) -> int:
    if isinstance(column, (preprocessing.Sequence, preprocessing.Weighted)):
        return num_buckets(column.column)
    if isinstance(column, preprocessing.Bucketized):
        return len(column.boundaries) + 1
    if isinstance(column, preprocessing.VocabularyList):
        return len(column.vocabulary) + column.num_oov_buckets
    if isinstance(column, preprocessing.VocabularyFile):
        return column.vocabulary_size + column.num_oov_buckets
    for name in ("num_buckets", "hash_bucket_size"):
        if hasattr(column, name):
            return int(getattr(column, name))
    raise errors.WrongType(
        f"{column!r} does not state its number of ids. Give it an attribute `num_buckets`."
    )


def bucketized_column(
    source_column: Numeric, boundaries: Sequence[float]
) -> preprocessing.Bucketized:
    """Creates a column of buckets of numbers, like `tf.feature_column.bucketized_column`."""
    if math.prod(source_column.shape) != 1:
        raise errors.InvalidSpec(
            f"Feature {source_column.key!r}: its shape is {source_column.shape}, but a bucketized "
            "feature must have one number per example. Make each number a feature of its own."
        )
    return preprocessing.Bucketized(
        *(source_column.key, tuple(boundaries), source_column.normalizer_fn),
        *(source_column.default_value, source_column.dtype),
    )


class ByStep:
    """A learning rate that is a function of the global step, for the optimizer of a table.

    For instance, `EMB.SGD(learning_rate=ByStep(falling_rate))`.
    """

    def __init__(self, function: Callable[[Object], Object]) -> None:
        self.function = function
        self.step: Variable | int = 0

    def __call__(self) -> Object:
        return self.at(self.step)

    def at(self, step: Object) -> Object:
        return self.function(step)


def with_padding(column: TableColumn, padding: int | None) -> TableColumn:
    if padding is None:
        return column
    return dataclasses.replace(column, ids=_padded(column.ids, padding))


def _padded(ids: preprocessing.Column, padding: int) -> preprocessing.Column:
    if isinstance(ids, preprocessing.Identity):
        return dataclasses.replace(ids, padding=padding)
    if isinstance(ids, (preprocessing.Sequence, preprocessing.Weighted)):
        return dataclasses.replace(ids, column=_padded(ids.column, padding))
    return ids


def features_of(
    columns: Mapping[str, TableColumn] | Sequence[TableColumn],
) -> list[TableColumn]:
    listed = list(columns.values() if isinstance(columns, Mapping) else columns)
    for each in listed:
        if not isinstance(each, TableColumn):
            raise errors.WrongType(
                f"{each!r} has no table in the engine. Make it with "
                "`embedding_column`, `shared_embedding_columns` or `id_column` of tf2_engine.keras."
            )
    by_key = {each.key: each for each in listed}
    return sorted(by_key.values(), key=lambda each: (str(each.table.name), each.key))


AnyColumn = ModelColumn | preprocessing.Column | str
Receiver = tuple[tf.TensorSpec, Callable[[Tensor], Mapping[str, Object]]]


def parse_example_spec(columns: Iterable[AnyColumn]) -> dict[str, Object]:
    """Creates the spec of the columns' features for `tf.io.parse_example`."""
    specs: dict[str, Object] = {}
    for column in columns:
        for key, spec in specs_of(column):
            if specs.setdefault(key, spec) != spec:
                raise errors.InvalidSpec(
                    f"Feature {key!r} is read by one column as {specs[key]} and by another as "
                    f"{spec}. Give all columns of a feature the same type and shape."
                )
    return specs


def parsing_receiver(
    feature_spec: Mapping[str, Object], default_batch_size: int | None = None
) -> Callable[[], Receiver]:
    """Creates a receiver for serialized Examples, for `TableModel.export_saved_model`.

    The receiver returns the spec of the Examples, [batch] string, and a function that parses them.

    Args:
        default_batch_size: None allows any batch size.
    """
    spec = tf.TensorSpec([default_batch_size], tf.string, "examples")
    return lambda: (spec, lambda examples: tf.io.parse_example(examples, feature_spec))


def specs_of(column: AnyColumn) -> Iterator[tuple[str, Object]]:
    if isinstance(column, str):  # inside a crossed column
        yield column, tf.io.VarLenFeature(tf.string)
    elif isinstance(column, (Numeric, preprocessing.Bucketized)):
        yield column.key, _fixed_spec(column, getattr(column, "shape", (1,)))
    elif isinstance(column, preprocessing.Crossed):
        for each in column.keys:
            yield from specs_of(each)
    elif isinstance(column, (preprocessing.Sequence, preprocessing.Weighted)):
        yield from specs_of(column.column)
        if isinstance(column, preprocessing.Weighted):
            yield column.weight_key, tf.io.VarLenFeature(column.dtype)
    elif isinstance(column, (SequenceNumeric, preprocessing.Column)):
        key: str = column.key  # type: ignore[union-attr]
        yield key, tf.io.VarLenFeature(getattr(column, "dtype", tf.int64))
    else:
        yield from specs_of(column.ids)


def _fixed_spec(column: Numeric | preprocessing.Bucketized, shape: Sequence[int]) -> Object:
    default = column.default_value
    if default is not None and np.ndim(default) == 0:  # one number for all elements
        for size in reversed(shape):
            default = (default,) * size
    return tf.io.FixedLenFeature(shape, column.dtype, default)
