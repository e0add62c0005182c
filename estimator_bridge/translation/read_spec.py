"""Reads an `EmbeddingConfigSpec`, stock's of any version or the bridge's, into a `LegacySpec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from estimator_bridge import errors
from estimator_bridge.legacy.parameters import is_parameters
from estimator_bridge.legacy.requirements import class_names, is_tensor_core_column, is_tpu_column
from estimator_bridge.legacy.table_config import FeatureConfig, TableConfig
from estimator_bridge.settings import legacy_spec
from estimator_bridge.settings.legacy_spec import (
    TABLE_PREFIX,
    LegacyOptimizer,
    LegacySpec,
    Note,
    Place,
)
from estimator_bridge.settings.optimizer_rows import kind_of
from estimator_bridge.settings.quirks import checked_quirks, default_quirks
from tf2_engine.types import Object


def read_spec(spec: Object, quirks: str | None = None) -> LegacySpec:
    """Reads the settings of an `EmbeddingConfigSpec`, in the order of stock's TPU configuration.

    `quirks` overrides the spec's own `quirks` and the default of the process.

    Raises:
        WrongType: a column is of a kind that has no table on a TPU.
        InvalidSpec: one feature has two embeddings, or a size is not a positive int.
        Untranslatable: the class of an optimizer is unknown.
    """
    notes: list[Note] = []
    tables: Mapping[str, Object] = spec.table_to_config_dict
    features: Mapping[str, Object] = spec.feature_to_config_dict
    form = "dict" if tables else "columns"
    if not tables:
        tables, features = _read_columns(spec.feature_columns or ())
        notes = [note for column in spec.feature_columns or () for note in _notes(column)]
    return LegacySpec(
        form=form,
        tables=tuple(_read_table(name, tables[name], form) for name in sorted(tables)),
        features=tuple(
            legacy_spec.LegacyFeature(key, each.table_id, each.max_sequence_length, each.weight_key)
            for key, each in sorted(features.items(), key=lambda item: (item[1].table_id, item[0]))
        ),
        optimizer=_read_optimizer(spec.optimization_parameters),
        clipping_limit=spec.clipping_limit,
        pipeline_execution_with_tensor_core=bool(spec.pipeline_execution_with_tensor_core),
        experimental_gradient_multiplier_fn=spec.experimental_gradient_multiplier_fn,
        partition_strategy=spec.partition_strategy,
        profile_data_directory=spec.profile_data_directory or None,
        quirks=checked_quirks(quirks or str(getattr(spec, "quirks", default_quirks()))),
        tensor_core_columns=tuple(
            legacy_spec.TensorCoreColumn(
                column.categorical_column.key, column._tensor_core_shape[1]
            )
            for column in spec.tensor_core_feature_columns or ()
            if is_tensor_core_column(column)
        ),
        notes=tuple(notes),
    )


def _read_table(name: str, config: Object, form: str) -> legacy_spec.LegacyTable:
    return legacy_spec.LegacyTable(
        name=name,
        vocabulary_size=config.vocabulary_size,
        dimension=config.dimension,
        initializer=config.initializer,
        combiner=config.combiner,
        hot_id_replication=bool(config.hot_id_replication),
        learning_rate=config.learning_rate,
        learning_rate_fn=config.learning_rate_fn,
        optimizer=_read_optimizer(config.optimization_parameters, f"Table {name!r}: "),
        embedding_name=name.removeprefix(TABLE_PREFIX) if form == "columns" else name,
    )


def _read_optimizer(optimizer: Object, where: str = "") -> LegacyOptimizer | None:
    if optimizer is None:
        return None
    kind = kind_of(optimizer)
    if kind is None or not is_parameters(optimizer):
        raise errors.Untranslatable(
            f"{where}`optimization_parameters` must be one of the `*Parameters` of TPU "
            f"embeddings, got {optimizer!r}."
        )
    return LegacyOptimizer(kind, dict(vars(optimizer)))


def _read_columns(
    columns: Sequence[Object],
) -> tuple[dict[str, TableConfig], dict[str, FeatureConfig]]:
    """Converts columns to config dicts. A table gets the settings of its last column."""
    for column in columns:
        if not is_tpu_column(column):
            raise errors.WrongType(
                f"Unsupported feature column {column!r}: a {type(column).__name__} has no table on "
                "a TPU. Make it with tf.compat.v1.tpu.experimental.embedding_column or "
                "shared_embedding_columns, leave it out of the spec, or run with use_tpu=False."
            )
    tables: dict[str, TableConfig] = {}
    features: dict[str, FeatureConfig] = {}
    for column in columns:
        key = column.get_feature_key_name()
        table = TABLE_PREFIX + column.get_embedding_var_name()
        if key in features:
            raise errors.InvalidSpec(
                f"Feature column {key!r} is used with multiple embeddings and this is not "
                f"supported. Its tables are {features[key].table_id!r} and {table!r}; give the ids "
                "of one of them another key in the input_fn."
            )
        features[key] = FeatureConfig(
            table, column.get_max_sequence_length(), column.get_weight_key_name()
        )
        rows, dimension = column.get_embedding_table_size()
        tables[table] = TableConfig(
            rows,
            dimension,
            initializer=column.get_initializer(),
            combiner=column.get_combiner(),
            learning_rate_fn=column.get_learning_rate_fn(),
        )
    return tables, features


# Maps an attribute of a categorical column to how such a column transforms its input on a CPU. (A
# TPU gets the ids as the input_fn returns them.) The first attribute that is set is reported.
_TRANSFORMATIONS = {
    "vocabulary_file": "looks its input up in a vocabulary",
    "vocabulary_list": "looks its input up in a vocabulary",
    "hash_bucket_size": "hashes its input",
    "default_value": "replaces ids outside the vocabulary by `default_value`",
}


def _notes(column: Object) -> Iterator[Note]:
    where = Place("feature", column.get_feature_key_name())
    categorical: Object = getattr(column, "categorical_column", None)
    while hasattr(categorical, "categorical_column"):  # Weighted and sequence columns.
        categorical = categorical.categorical_column
    for name, text in _TRANSFORMATIONS.items():
        if getattr(categorical, name, None) is not None:
            yield Note("column_transforms_on_cpu_only", where, text)
            break
    if {"_TPUEmbeddingColumn", "_TPUSharedEmbeddingColumn"}.intersection(class_names(column)):
        yield Note("deprecated_column", where, type(column).__name__)
