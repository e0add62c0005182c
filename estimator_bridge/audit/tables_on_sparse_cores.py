"""Lays the tables of a spec out on SparseCores: stacks and their sizes, and batches that fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from estimator_bridge.audit.of_sparse_cores import SparseCoreAudit, StackSize, Target, effects_of
from estimator_bridge.checkpoint_files.variable_names import tables_of_spec
from estimator_bridge.settings.legacy_spec import LegacySpec, Note
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from tf2_engine import errors, sparsecore_layout
from tf2_engine.sparsecore_layout import SparseCores, TableLayout
from tf2_engine.sparsecore_limits import next_batch
from tf2_engine.types import Object


def audit_tables(
    spec: Object, legacy: LegacySpec, notes: Iterable[Note], target: Target
) -> SparseCoreAudit:
    """Audits the tables of a spec; `notes` are on its settings and on the program.

    Raises:
        InvalidSpec: a table has no optimizer.
    """
    cores = target.cores or 1
    remarks, notes = [], list(notes)
    per_device = sparsecore_layout.SPARSE_CORES_PER_DEVICE[target.kind]
    try:
        sparse_cores = SparseCores(cores, per_device)
    except errors.InvalidSpec as error:
        return SparseCoreAudit(target, effects_of(notes), remarks=(f"No such machine: {error}",))
    layouts = layouts_of_spec(spec, legacy, sparse_cores, target.batch_size)
    slots = {
        known.name: OPTIMIZERS[known.kind].engine.slot_names if known.kind else ()
        for known in tables_of_spec(spec)
    }
    stacks = tuple(
        StackSize(
            name,
            tuple(layout.table for layout in of_stack),
            of_stack[0].stack_rows,
            of_stack[0].padded_dim,
            slots[of_stack[0].table],
        )
        for name, of_stack in sparsecore_layout.stacks_of(layouts.values()).items()
    )
    if target.batch_size is None:
        remarks.append("the batch size is unknown: give --batch_size, or --run the program")
    else:
        remarks += _batch_remarks(legacy, target.batch_size, sparse_cores)
    return SparseCoreAudit(target, effects_of(notes), sparse_cores, stacks, remarks=tuple(remarks))


def layouts_of_spec(
    spec: Object, legacy: LegacySpec, sparse_cores: SparseCores, batch_size: int | None
) -> dict[str, TableLayout]:
    """Returns the layout of each table of a spec, as TPUEmbeddingV2 computes it."""
    # The migrated program has a dict of features, whose first key decides.
    first = min(legacy.features, key=lambda feature: feature.key, default=None)
    samples = {}
    if first is not None:
        of_core = (batch_size or 0) // sparse_cores.cores
        samples[first.table] = of_core * (first.max_sequence_length or 1)
    tables = [
        sparsecore_layout.StackableTable(
            known.name,
            *known.shape,
            group=known.group,
            samples=samples.get(known.name, 0),
            features=int(known.name in samples),
        )
        for known in tables_of_spec(spec)
        if known.shape is not None
    ]
    return sparsecore_layout.table_layouts(tables, sparse_cores)


def _batch_remarks(legacy: LegacySpec, batch_size: int, sparse_cores: SparseCores) -> Iterator[str]:
    cores, per_core = sparse_cores.cores, sparse_cores.per_core
    if batch_size % cores:
        yield f"the batch size {batch_size} does not divide among {cores} cores"
        return
    for feature in legacy.features:
        cells = batch_size // cores * (feature.max_sequence_length or 1)
        if cells % per_core:
            yield (
                f"feature {feature.key!r} has {cells} activations on each core, which do not "
                f"divide among its {per_core} SparseCores; the next number that does is "
                f"{next_batch(cells, per_core)}"
            )
