"""Audits the tables of a spec, and of a program that creates a spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from estimator_bridge.audit import of_torch
from estimator_bridge.audit.of_sparse_cores import (
    TORCH,
    SparseCoreAudit,
    StackSize,
    Target,
    effects_of,
)
from estimator_bridge.audit.program import AuditedProgram
from estimator_bridge.audit.report import DEFAULT_HOSTS, Audit, AuditedTable, findings_of
from estimator_bridge.checkpoint_files.variable_names import tables_of_spec
from estimator_bridge.settings import catalogue, render
from estimator_bridge.settings.legacy_spec import LegacySpec, LegacyTable, Note, Place, SourceText
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from estimator_bridge.translation.read_spec import read_spec
from tf2_engine import sparsecore_layout
from tf2_engine.errors import InvalidSpec
from tf2_engine.sparsecore_layout import SparseCores, TableLayout
from tf2_engine.sparsecore_limits import next_batch
from tf2_engine.types import Object


def audit_spec(
    spec: Object,
    subject: str = "the spec",
    hosts: Sequence[int] = DEFAULT_HOSTS,
    target: Target | None = None,
) -> Audit:
    """Audits a spec, and its effects on `target` if given; `subject` names the spec in reports.

    Raises:
        InvalidSpec, Untranslatable, WrongType: the spec cannot be read.
    """
    legacy = read_spec(spec)
    tables = tuple(_size(table, legacy) for table in legacy.tables)
    audit = Audit(subject, tables, tuple(hosts), findings_of(_notes(legacy)))
    if target is None:
        return audit
    notes = catalogue.notes_of_all_settings(legacy)
    if target.kind == TORCH:
        return dataclasses.replace(audit, on_torch=of_torch.audit_tables(legacy, notes))
    return dataclasses.replace(audit, on_sparse_cores=audit_tables(spec, legacy, notes, target))


def _notes(legacy: LegacySpec) -> Iterator[Note]:
    for note in catalogue.notes_of_spec(legacy):
        yield note
        if catalogue.ROWS[note.rule].sparse_core.outcome == "ignored":
            yield Note("sparse_core", note.where, SourceText(render.shown(note)))


def _size(table: LegacyTable, legacy: LegacySpec) -> AuditedTable:
    optimizer = table.optimizer or legacy.optimizer
    return AuditedTable(
        name=table.name,
        rows=table.vocabulary_size,
        dim=table.dimension,
        optimizer=optimizer.kind.removesuffix("Parameters") if optimizer else "no optimizer",
        slots=OPTIMIZERS[optimizer.kind].engine.slot_names if optimizer else (),
        features=tuple(each.key for each in legacy.features if each.table == table.name),
        strategy=legacy.partition_strategy,
    )


def audit_run(
    script: str,
    arguments: Sequence[str] = (),
    hosts: Sequence[int] = DEFAULT_HOSTS,
    target: Target | None = None,
    tf1: bool | None = None,
    tell: Callable[[str], object] = lambda sentence: None,
    is_module: bool = False,
) -> Audit:
    """Runs a program up to its first TPUEstimator, and audits the spec.

    The program reads its data and files, but does not train. If `target` has a `sample`, the
    program runs up to its first call that trains, and batches from that call's input are examined.
    A TensorFlow 1 program turns TensorFlow 2's behavior off, for good in this process.

    Raises:
        InvalidInput: the program ends without creating a TPUEstimator.
    """
    program = AuditedProgram(script, arguments, tf1, tell, is_module)
    calls = ("__init__", "train") if target is not None and target.sample else ("__init__",)
    reached = program.arguments_of(*calls)
    settings = reached["__init__"]
    spec = settings.get("embedding_config_spec")
    notes = [] if spec is None else [*_notes(read_spec(spec))]
    config = getattr(settings.get("config"), "tpu_config", None)
    if config is not None:
        notes += catalogue.notes_of_settings("TPUConfig", config._asdict(), Place("TPUConfig"))
    if (
        spec is not None
        and spec.partition_strategy == "mod"
        and not settings.get("eval_on_tpu", True)
    ):
        text = SourceText("eval_on_tpu=False")
        notes.append(Note("mod_partitioning", Place("TPUEstimator"), text))
    sizes = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    remarks: tuple[str, ...] = (
        f"use_tpu={settings.get('use_tpu', True)}",
        ", ".join(f"{name}={settings.get(name)}" for name in sizes),
    )
    subject = f"{script}, as it runs"
    if spec is None:
        remarks += ("no embedding_config_spec, so there are no tables",)
        return Audit(subject, (), tuple(hosts), findings_of(notes), remarks)
    is_torch = target is not None and target.kind == TORCH
    audit = audit_spec(spec, subject, hosts, target if is_torch else None)
    on_target = None
    if target is not None and not is_torch:
        shards = getattr(config, "num_shards", None) or 1
        target = target._replace(
            cores=target.cores or shards,
            batch_size=target.batch_size or settings.get("train_batch_size"),
        )
        machine = Note("num_shards", Place("TPUConfig"), SourceText(f"num_shards={shards}"))
        on_target = _on_target(reached.get("train"), spec, [*notes, machine], target)
    return dataclasses.replace(
        audit, findings=findings_of(notes), remarks=remarks, on_sparse_cores=on_target
    )


def _on_target(
    training: Mapping[str, Object] | None, spec: Object, notes: Sequence[Note], target: Target
) -> SparseCoreAudit:
    legacy = read_spec(spec)
    notes = [*catalogue.notes_of_all_settings(legacy), *notes]
    audited = audit_tables(spec, legacy, notes, target)
    if training is None or audited.sparse_cores is None:
        return audited
    layouts = layouts_of_spec(spec, legacy, audited.sparse_cores, target.batch_size)
    from estimator_bridge.audit.sampling import sample

    try:
        sampled = sample(training["self"], training["input_fn"], legacy, layouts, target.sample)
    except InvalidSpec as error:
        remark = f"No batches were sampled: {error}"
        return dataclasses.replace(audited, remarks=(*audited.remarks, remark))
    return dataclasses.replace(audited, sampled=sampled)


def audit_tables(
    spec: Object, legacy: LegacySpec, notes: Iterable[Note], target: Target
) -> SparseCoreAudit:
    cores = target.cores or 1
    remarks, notes = [], list(notes)
    per_device = sparsecore_layout.SPARSE_CORES_PER_DEVICE[target.kind]
    try:
        sparse_cores = SparseCores(cores, per_device)
    except InvalidSpec as error:
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
        remarks.append("the batch size is unknown: give --batch_size, or audit with --run")
    else:
        remarks += _batch_remarks(legacy, target.batch_size, sparse_cores)
    return SparseCoreAudit(target, effects_of(notes), sparse_cores, stacks, remarks=tuple(remarks))


def layouts_of_spec(
    spec: Object, legacy: LegacySpec, sparse_cores: SparseCores, batch_size: int | None
) -> dict[str, TableLayout]:
    # Stock's layout counts only the samples of the first feature. The migrated program passes its
    # features in a dict, so the first feature is the one with the first key.
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
        yield f"the batch size {batch_size} cannot be divided evenly among {cores} cores"
        return
    for feature in legacy.features:
        cells = batch_size // cores * (feature.max_sequence_length or 1)
        if cells % per_core:
            yield (
                f"feature {feature.key!r} has {cells} activations on each core, which "
                f"cannot be divided evenly among its {per_core} SparseCores; the next number that "
                f"can is {next_batch(cells, per_core)}"
            )
