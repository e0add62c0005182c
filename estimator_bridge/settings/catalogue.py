"""The catalogue: a row for every legacy setting, in the order of reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from estimator_bridge.settings.input_settings import INPUTS
from estimator_bridge.settings.legacy_spec import SPEC, LegacySpec, Note, Place, SourceText
from estimator_bridge.settings.row import PLAIN, SettingRow, When
from estimator_bridge.settings.run_settings import RUNS
from estimator_bridge.settings.table_settings import TABLES
from estimator_bridge.settings.update_settings import UPDATES
from tf2_engine.types import Object

ROWS: Mapping[str, SettingRow] = {**UPDATES, **TABLES, **INPUTS, **RUNS}
"""Maps names to rows. The field `rule` of a note is such a name."""

RULES: Mapping[str, SettingRow] = {name: row for name, row in ROWS.items() if row.severity != PLAIN}
"""The rows that the audit reports."""


def readers(owner: str, setting: str) -> Iterator[tuple[str, When | None]]:
    fields = {f"{owner}.{setting}"}
    if owner.endswith("Parameters"):
        fields.add(f"*Parameters.{setting}")
    for name, row in ROWS.items():
        for field in fields & row.reads.keys():
            yield name, row.reads[field]


def finding_of(rule: str) -> str | None:
    return ROWS[rule].finding or (rule if rule in RULES else None)


class Value(NamedTuple):
    """A legacy class's setting in a spec. `value` is None if the program does not set it."""

    owner: str
    setting: str
    where: Place
    value: Object


def values(legacy: LegacySpec) -> Iterator[Value]:
    optimizer, *others = _optimizer("EmbeddingConfigSpec", SPEC, legacy)
    yield from (optimizer, *_fields("EmbeddingConfigSpec", SPEC, legacy), *others)
    for table in legacy.tables:
        where = Place("table", table.name)
        yield from _optimizer("TableConfig", where, table)
        yield from _fields("TableConfig", where, table)
    for feature in legacy.features:
        yield from _fields("FeatureConfig", Place("feature", feature.key), feature)


def notes_of_spec(legacy: LegacySpec) -> Iterator[Note]:
    used = dict(legacy.optimizers())
    for value in values(legacy):
        if not value.owner.endswith("Parameters") or value.where in used:
            yield from _notes_of_value(value)
    for rule, row in ROWS.items():
        if row.detect is not None:
            for where, shown in row.detect(legacy):
                yield Note(rule, where, shown)
    yield from legacy.notes


def notes_of_all_settings(legacy: LegacySpec) -> Iterator[Note]:
    yield from notes_of_spec(legacy)
    used = dict(legacy.optimizers())
    for value in values(legacy):
        if value.value is None or (value.owner.endswith("Parameters") and value.where not in used):
            continue
        for rule, when in readers(value.owner, value.setting):
            if when is None and ROWS[rule].detect is None:
                yield Note(rule, value.where, SourceText(value.setting))


def notes_of_settings(owner: str, settings: Mapping[str, Object], where: Place) -> Iterator[Note]:
    for setting, value in settings.items():
        yield from _notes_of_value(Value(owner, setting, where, value))


def _notes_of_value(value: Value) -> Iterator[Note]:
    for rule, when in readers(value.owner, value.setting):
        if when is not None and ROWS[rule].detect is None and when(value.value):
            shown = value.value
            if callable(shown):
                shown = SourceText(getattr(shown, "__qualname__", type(shown).__name__))
            yield Note(rule, value.where, shown)


def _optimizer(owner: str, where: Place, holder: Object) -> Iterator[Value]:
    optimizer = holder.optimizer
    kind = None if optimizer is None else SourceText(optimizer.kind)
    yield Value(owner, "optimization_parameters", where, kind)
    for setting, value in optimizer.settings.items() if optimizer else ():
        yield Value(optimizer.kind, setting, where, value)


def _fields(owner: str, where: Place, holder: Object) -> Iterator[Value]:
    for field in dataclasses.fields(holder):
        if any(readers(owner, field.name)):
            value = getattr(holder, field.name)
            # The defaults of switches and of max_sequence_length count as unset.
            unset = value is False or (owner == "FeatureConfig" and value == 0)
            yield Value(owner, field.name, where, None if unset else value)
