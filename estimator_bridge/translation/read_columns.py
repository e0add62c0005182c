"""Reads TPU embedding columns, stock's of any version, into table and feature configs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from estimator_bridge import errors
from estimator_bridge.legacy.checks import class_names
from estimator_bridge.legacy.spec import is_tpu_column
from estimator_bridge.legacy.table_config import FeatureConfig, TableConfig
from estimator_bridge.settings import note
from estimator_bridge.settings.legacy_spec import TensorCoreColumn
from estimator_bridge.settings.note import Note
from tf2_engine.types import Object

TABLE_PREFIX = "tbl_"


class Columns(NamedTuple):
    """What columns say: the config dicts of the other form, and notes on what these cannot say."""

    tables: dict[str, TableConfig]
    features: dict[str, FeatureConfig]
    notes: tuple[Note, ...]


def read_columns(columns: Sequence[Object]) -> Columns:
    """Reads columns; where several share a table the last one describes it, as in stock.

    Raises:
        WrongType: a column is no TPU embedding column.
        InvalidSpec: one feature has two columns, or a table's size is no positive int.
    """
    for column in columns:
        if not is_tpu_column(column):
            raise errors.WrongType(
                f"{column!r} is a {type(column).__name__}, which has no table on a TPU. Make it "
                "with tf.compat.v1.tpu.experimental.embedding_column or shared_embedding_columns, "
                "leave it out of the spec, or run with use_tpu=False."
            )
    tables: dict[str, TableConfig] = {}
    features: dict[str, FeatureConfig] = {}
    notes: list[Note] = []
    for column in columns:
        key = column.get_feature_key_name()
        table = TABLE_PREFIX + column.get_embedding_var_name()
        if key in features:
            raise errors.InvalidSpec(
                f"Feature {key!r} is used with two embeddings, tables {features[key].table_id!r} "
                f"and {table!r}. Give the ids of one of them another key in the input_fn."
            )
        features[key] = FeatureConfig(
            table_id=table,
            max_sequence_length=column.get_max_sequence_length(),
            weight_key=column.get_weight_key_name(),
        )
        vocabulary_size, dimension = column.get_embedding_table_size()
        tables[table] = TableConfig(
            vocabulary_size=vocabulary_size,
            dimension=dimension,
            initializer=column.get_initializer(),
            combiner=column.get_combiner(),
            learning_rate_fn=column.get_learning_rate_fn(),
        )
        notes.extend(_notes(key, column))
    return Columns(tables, features, tuple(notes))


def read_tensor_core_column(column: Object) -> TensorCoreColumn:
    """Reads a column whose table is an ordinary variable."""
    return TensorCoreColumn(
        key=column.categorical_column.key,
        padded_length=column._tensor_core_shape[1],
    )


# What a categorical column does to its input on a CPU, by the attribute that says so; a TPU is
# handed the ids as they come from the input_fn. The first that applies says enough.
_TRANSFORMATIONS = {
    "vocabulary_file": "looks its input up in a vocabulary",
    "vocabulary_list": "looks its input up in a vocabulary",
    "hash_bucket_size": "hashes its input",
    "default_value": "replaces ids outside the vocabulary by `default_value`",
}


def _notes(key: str, column: Object) -> Iterator[Note]:
    categorical: Object = getattr(column, "categorical_column", None)
    while hasattr(categorical, "categorical_column"):  # Weighted and sequence columns.
        categorical = categorical.categorical_column
    for name, text in _TRANSFORMATIONS.items():
        if getattr(categorical, name, None) is not None:
            yield Note("column_transforms_on_cpu_only", note.feature(key), text)
            break
    if {"_TPUEmbeddingColumn", "_TPUSharedEmbeddingColumn"}.intersection(class_names(column)):
        yield Note("deprecated_column", note.feature(key), type(column).__name__)
