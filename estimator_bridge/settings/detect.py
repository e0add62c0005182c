"""Finds which rows of the catalogue a spec, or any object with legacy settings, is about."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from estimator_bridge.settings import note
from estimator_bridge.settings.catalogue import ROWS, readers
from estimator_bridge.settings.legacy_spec import (
    LegacyFeature,
    LegacyOptimizer,
    LegacySpec,
    LegacyTable,
)
from estimator_bridge.settings.note import Note, Place, SourceText
from tf2_engine.types import Object


class Value(NamedTuple):
    """One setting of a spec.

    Attributes:
        owner: the legacy class that has it.
        setting: its legacy name.
        where: the table or feature, or the spec.
        value: as the program sets it; of an optimizer its class name; None where it is not set.
    """

    owner: str
    setting: str
    where: Place
    value: Object


def values(legacy: LegacySpec) -> Iterator[Value]:
    """Yields every setting of a spec, the spec's own first, then table by table and feature."""
    yield _optimizer_value("EmbeddingConfigSpec", note.SPEC, legacy.optimizer)
    yield from _fields("EmbeddingConfigSpec", note.SPEC, legacy)
    yield from _hyperparameters(note.SPEC, legacy.optimizer)
    for table in legacy.tables:
        where = note.table(table.name)
        yield _optimizer_value("TableConfig", where, table.optimizer)
        yield from _hyperparameters(where, table.optimizer)
        yield from _fields("TableConfig", where, table)
    for feature in legacy.features:
        yield from _fields("FeatureConfig", note.feature(feature.key), feature)


def notes_of_spec(legacy: LegacySpec) -> Iterator[Note]:
    """Yields a note for every row that applies to a spec and for every place, in spec order."""
    used = dict(legacy.optimizers())
    for value in values(legacy):
        if not value.owner.endswith("Parameters") or value.where in used:
            yield from _notes_of_value(value)
    for rule, row in ROWS.items():
        if row.detect is not None:
            for where, shown in row.detect(legacy):
                yield Note(rule, where, shown)
    yield from legacy.notes


def notes_of_settings(owner: str, settings: Mapping[str, Object], where: Place) -> Iterator[Note]:
    """Yields a note for every row that the settings of one object, such as a TPUConfig, are about.

    Args:
        owner: the legacy class of the object.
        settings: by their legacy names.
    """
    for setting, value in settings.items():
        yield from _notes_of_value(Value(owner, setting, where, value))


def _notes_of_value(value: Value) -> Iterator[Note]:
    for rule, when in readers(value.owner, value.setting):
        if when is not None and ROWS[rule].detect is None and when(value.value):
            yield Note(rule, value.where, _named(value.value))


def _named(value: Object) -> Object:
    if callable(value):
        return SourceText(getattr(value, "__qualname__", type(value).__name__))
    return value


def _optimizer_value(owner: str, where: Place, optimizer: LegacyOptimizer | None) -> Value:
    return Value(owner, "optimization_parameters", where, optimizer and SourceText(optimizer.kind))


def _hyperparameters(where: Place, optimizer: LegacyOptimizer | None) -> Iterator[Value]:
    if optimizer is not None:
        for setting, value in optimizer.settings.items():
            yield Value(optimizer.kind, setting, where, value)


def _fields(
    owner: str, where: Place, holder: LegacySpec | LegacyTable | LegacyFeature
) -> Iterator[Value]:
    """Yields the fields that have the name of a legacy setting."""
    for field in dataclasses.fields(holder):
        if any(readers(owner, field.name)):
            value = getattr(holder, field.name)
            # The defaults of switches and of max_sequence_length mean that they are not set.
            unset = value is False or (owner == "FeatureConfig" and value == 0)
            yield Value(owner, field.name, where, None if unset else value)
