"""Reads an `EmbeddingConfigSpec`, stock's or ours, into a `LegacySpec`."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge import errors
from estimator_bridge.legacy.optimizer_rows import kind_of
from estimator_bridge.legacy.parameters import is_parameters
from estimator_bridge.legacy.spec import is_tensor_core_column
from estimator_bridge.settings.legacy_spec import (
    LegacyFeature,
    LegacyOptimizer,
    LegacySpec,
    LegacyTable,
)
from estimator_bridge.settings.note import Note
from estimator_bridge.settings.quirks import checked_quirks, default_quirks
from estimator_bridge.translation.read_columns import (
    TABLE_PREFIX,
    read_columns,
    read_tensor_core_column,
)
from tf2_engine.types import Object


def read_spec(spec: Object, quirks: str | None = None) -> LegacySpec:
    """Returns what a spec says, in the order in which stock hands it to the device.

    Args:
        spec: an `EmbeddingConfigSpec`, of stock or ours.
        quirks: overrides the spec's; stock's specs have none, and take the default of the process.

    Raises:
        WrongType: a column has no table on a TPU.
        InvalidSpec: one feature has two embeddings, or a size is no positive int.
        Untranslatable: an optimizer is of an unknown class.
    """
    notes: tuple[Note, ...] = ()
    tables: Mapping[str, Object] = {}
    features: Mapping[str, Object] = {}
    if spec.table_to_config_dict:
        tables, features = spec.table_to_config_dict, spec.feature_to_config_dict
    elif spec.feature_columns:
        tables, features, notes = read_columns(spec.feature_columns)
    form = "dict" if spec.table_to_config_dict else "columns"
    tensor_core = spec.tensor_core_feature_columns or ()
    return LegacySpec(
        form=form,
        tables=tuple(_read_table(name, tables[name], form) for name in sorted(tables)),
        features=tuple(
            LegacyFeature(key, table, features[key].max_sequence_length, features[key].weight_key)
            for table, key in sorted((config.table_id, key) for key, config in features.items())
        ),
        optimizer=_read_optimizer(spec.optimization_parameters),
        clipping_limit=spec.clipping_limit,
        pipeline_execution_with_tensor_core=bool(spec.pipeline_execution_with_tensor_core),
        experimental_gradient_multiplier_fn=spec.experimental_gradient_multiplier_fn,
        partition_strategy=spec.partition_strategy,
        profile_data_directory=spec.profile_data_directory or None,
        quirks=checked_quirks(quirks or str(getattr(spec, "quirks", default_quirks()))),
        tensor_core_columns=tuple(
            read_tensor_core_column(column)
            for column in tensor_core
            if is_tensor_core_column(column)
        ),
        notes=notes,
    )


def _read_table(name: str, config: Object, form: str) -> LegacyTable:
    return LegacyTable(
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
