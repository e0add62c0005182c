"""Audits an `EmbeddingConfigSpec`, stock's or ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from estimator_bridge.audit.report import Audit, Finding, ordered
from estimator_bridge.audit.sizes import TableSize
from estimator_bridge.translation.legacy_spec import LegacyOptimizer, LegacySpec, LegacyTable
from estimator_bridge.translation.optimizer_rows import OPTIMIZERS
from estimator_bridge.translation.read_spec import read_spec

IN_TF2 = frozenset(
    {
        "AdagradParameters",
        "AdagradMomentumParameters",
        "AdamParameters",
        "FtrlParameters",
        "StochasticGradientDescentParameters",
    }
)
"""Optimizers that `tf.tpu.experimental.embedding` has a class for."""

_SPEC = "EmbeddingConfigSpec"
DEFAULT_HOSTS = (1, 8)
"""Numbers of hosts that sizes are given for unless asked."""


def audit_spec(spec: Any, subject: str = "the spec", hosts: Sequence[int] = DEFAULT_HOSTS) -> Audit:
    """Returns what is to be known of a spec.

    Args:
        subject: what the report calls it.
        hosts: numbers of hosts to divide the tables among.

    Raises:
        InvalidSpec, Untranslatable, WrongType: the spec cannot be read.
    """
    legacy = read_spec(spec)
    findings = [*_of_spec(legacy), *_of_features(legacy), *_of_notes(legacy)]
    for table in legacy.tables:
        findings += _of_table(table)
    for where, optimizer in _optimizers(legacy):
        findings += _of_optimizer(where, optimizer)
    return Audit(
        subject=subject,
        tables=tuple(_size(table, legacy) for table in legacy.tables),
        hosts=tuple(hosts),
        findings=ordered(findings),
    )


def _size(table: LegacyTable, legacy: LegacySpec) -> TableSize:
    optimizer = table.optimizer or legacy.optimizer
    slots: tuple[str, ...] = ()
    if optimizer is not None:
        slots = OPTIMIZERS[optimizer.kind].engine.slot_names
    return TableSize(
        name=table.name,
        rows=table.vocabulary_size,
        dim=table.dimension,
        optimizer=optimizer.kind.removesuffix("Parameters") if optimizer else "no optimizer",
        slots=slots,
        features=tuple(each.key for each in legacy.features if each.table == table.name),
        strategy=legacy.partition_strategy,
    )


def _of_spec(legacy: LegacySpec) -> Iterator[Finding]:
    for rule, value in (
        ("clipping_limit", legacy.clipping_limit),
        ("optimization_parameters", legacy.optimizer and legacy.optimizer.kind),
        ("gradient_multiplier", legacy.gradient_multiplier_fn and _name_of_multiplier(legacy)),
        ("profile_data_directory", legacy.profile_data_directory),
    ):
        if value is not None:
            yield Finding(rule, _SPEC, str(value))
    if legacy.pipeline_execution_with_tensor_core:
        yield Finding("pipelining", _SPEC, "pipeline_execution_with_tensor_core=True")
    if legacy.partition_strategy == "mod":
        yield Finding("mod_partitioning", _SPEC, "partition_strategy='mod'")
    if legacy.form == "dict":
        yield Finding("config_dicts", _SPEC)
    for column in legacy.tensor_core_columns:
        yield Finding("tensor_core_column", f"feature {column.key!r}")
    yield Finding("ids_out_of_range", "all features")
    yield Finding("predict", "TPUEstimator.predict")


def _name_of_multiplier(legacy: LegacySpec) -> str:
    return str(getattr(legacy.gradient_multiplier_fn, "__qualname__", "a function"))


def _of_features(legacy: LegacySpec) -> Iterator[Finding]:
    for feature in legacy.features:
        where = f"feature {feature.key!r}"
        if feature.weight_key is not None:
            yield Finding("weighted_feature", where, f"weights {feature.weight_key!r}")
        if feature.max_sequence_length:
            length = f"max_sequence_length={feature.max_sequence_length}"
            yield Finding("sequence", where, length)
            yield Finding("sparse_core", where, length)
        elif legacy.table(feature.table).combiner is not None:
            yield Finding("dense_ids", where)


def _of_table(table: LegacyTable) -> Iterator[Finding]:
    where = f"table {table.name!r}"
    if table.combiner is None:
        yield Finding("combiner_none", where)
    if table.learning_rate is not None and not table.learning_rate:
        yield Finding("learning_rate_zero", where, f"learning_rate={table.learning_rate}")
    if table.learning_rate_fn is not None and not table.learning_rate:
        name = getattr(table.learning_rate_fn, "__qualname__", "a function")
        yield Finding("learning_rate_fn", where, name)
    if table.hot_id_replication:
        yield Finding("hot_id_replication", where)


def _optimizers(legacy: LegacySpec) -> Iterator[tuple[str, LegacyOptimizer]]:
    """Yields every optimizer that a table uses, with where it is written."""
    if legacy.optimizer is not None and any(table.optimizer is None for table in legacy.tables):
        yield _SPEC, legacy.optimizer
    for table in legacy.tables:
        if table.optimizer is not None:
            yield f"table {table.name!r}", table.optimizer


def _of_optimizer(where: str, optimizer: LegacyOptimizer) -> Iterator[Finding]:
    settings = optimizer.settings
    if optimizer.kind == "AdamParameters":
        yield Finding("adam_without_correction", where, f"epsilon={settings['epsilon']}")
    if optimizer.kind == "FtrlParameters" and not settings["initial_accumulator_value"]:
        yield Finding("ftrl_zero_accumulator", where, "initial_accumulator_value=0.0")
    if optimizer.kind not in IN_TF2:
        yield Finding("optimizer_lost", where, optimizer.kind)
    if not settings["use_gradient_accumulation"]:
        value = "use_gradient_accumulation=False"
        yield Finding("no_gradient_accumulation", where, value)
        yield Finding("sparse_core", where, value)
    decay = settings["weight_decay_factor"]
    if decay is not None and not decay:
        yield Finding("weight_decay_zero", where, f"weight_decay_factor={decay}")
    elif settings["multiply_weight_decay_factor_by_learning_rate"] and decay is None:
        value = "multiply_weight_decay_factor_by_learning_rate=True alone"
        yield Finding("weight_decay_zero", where, value)
    for name in ("clip_weight", "clip_gradient"):
        low, high = settings[f"{name}_min"], settings[f"{name}_max"]
        if low is not None or high is not None:
            yield Finding("sparse_core", where, f"{name}_min={low}, {name}_max={high}")
    if decay:
        yield Finding("sparse_core", where, f"weight_decay_factor={decay}")


_NOTES = {
    "with use_tpu=False only": "column_transforms_on_cpu_only",
    "are deprecated": "deprecated_column",
}
"""By what a note of the reader says, the rule that it falls under."""


def _of_notes(legacy: LegacySpec) -> Iterator[Finding]:
    for note in legacy.notes:
        where, _, text = note.partition(": ")
        for part, rule in _NOTES.items():
            if part in text:
                yield Finding(rule, where[:1].lower() + where[1:], text.partition(" with use")[0])
