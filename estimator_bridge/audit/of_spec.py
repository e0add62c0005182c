"""Audits an `EmbeddingConfigSpec`, stock's or ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator_bridge.audit.report import Audit, findings_of
from estimator_bridge.audit.sizes import TableSize
from estimator_bridge.legacy.optimizer_rows import OPTIMIZERS
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import ROWS
from estimator_bridge.settings.detect import notes_of_spec
from estimator_bridge.settings.legacy_spec import LegacySpec, LegacyTable
from estimator_bridge.settings.note import Note, SourceText
from estimator_bridge.translation.read_spec import read_spec
from tf2_engine.types import Object

DEFAULT_HOSTS = (1, 8)
"""Numbers of hosts that sizes are given for by default."""


def audit_spec(
    spec: Object, subject: str = "the spec", hosts: Sequence[int] = DEFAULT_HOSTS
) -> Audit:
    """Returns the tables and findings of a spec.

    Args:
        subject: the name of the spec in the report.
        hosts: numbers of hosts to divide the tables among.

    Raises:
        InvalidSpec, Untranslatable, WrongType: the spec cannot be read.
    """
    legacy = read_spec(spec)
    return Audit(
        subject=subject,
        tables=tuple(_size(table, legacy) for table in legacy.tables),
        hosts=tuple(hosts),
        findings=findings_of(notes_to_report(legacy)),
    )


def notes_to_report(legacy: LegacySpec) -> Iterator[Note]:
    """Yields the notes of a spec, and again those that matter on TPUs with SparseCores."""
    for note in notes_of_spec(legacy):
        yield note
        if ROWS[note.rule].sparse_core:
            yield Note("sparse_core", note.where, SourceText(render.shown(note)))


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
