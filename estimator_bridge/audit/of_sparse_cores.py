"""What becomes of a program on TPUs with SparseCores: its settings, tables, batches and ids."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from estimator_bridge.checkpoint_files.variable_names import tables_of_spec
from estimator_bridge.legacy.optimizer_rows import OPTIMIZERS
from estimator_bridge.readable_sizes import readable
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import ROWS
from estimator_bridge.settings.legacy_spec import LegacySpec, Note, Place, SourceText
from estimator_bridge.settings.row import SPARSE_CORE_OUTCOMES
from tf2_engine import errors
from tf2_engine.sparsecore_layout import (
    SPARSE_CORES_PER_DEVICE,
    SparseCores,
    StackableTable,
    TableLayout,
    stacks_of,
    table_layouts,
)
from tf2_engine.sparsecore_limits import IDS_PER_PARTITION, IDS_PER_SAMPLE, Need, next_batch
from tf2_engine.types import Object

_HEAD_ROOM = 1.25  # Of the limits that are proposed over what a sample of the data needs.
_MULTIPLE = 8


class Target(NamedTuple):
    """The machine that an audit is for.

    Attributes:
        kind: one of `SPARSE_CORES_PER_DEVICE`.
        cores: of all hosts together; None takes the program's, or one.
        batch_size: samples of the global batch; None takes the program's, where it is run.
        sample: how many batches of the program's own data to look at.
    """

    kind: str
    cores: int | None = None
    batch_size: int | None = None
    sample: int = 0


class Effect(NamedTuple):
    """What becomes of one setting at one place; `outcome` is one of `SPARSE_CORE_OUTCOMES`."""

    rule: str
    where: str
    value: str
    outcome: str
    effect: str
    way_out: str


class Sampled(NamedTuple):
    """What batches of the program's data need: by stack, and ids outside of tables by feature."""

    batches: int
    needs: Mapping[str, Need]
    outside: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class StackSize:
    """A stack of tables on every SparseCore: `bytes` with slots and padding."""

    name: str
    tables: tuple[str, ...]
    rows: int
    dim: int
    slots: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Bytes on each SparseCore."""
        return 4 * self.rows * self.dim * (1 + len(self.slots))


@dataclasses.dataclass(frozen=True)
class SparseCoreAudit:
    """What becomes of a program on a kind of TPU with SparseCores.

    Attributes:
        effects: of every setting, worst outcome first.
        stacks: empty where the subject has no tables, or no such machine can hold them.
        sampled: None without `Target.sample`.
        remarks: further lines to know.
    """

    target: Target
    effects: tuple[Effect, ...]
    sparse_cores: SparseCores | None = None
    stacks: tuple[StackSize, ...] = ()
    sampled: Sampled | None = None
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Object]:
        """Returns values that JSON can hold."""
        cores, sampled = self.sparse_cores, self.sampled
        return {
            "target": self.target.kind,
            "cores": None if cores is None else cores.cores,
            "sparse_cores_per_core": SPARSE_CORES_PER_DEVICE[self.target.kind],
            "settings": [effect._asdict() for effect in self.effects],
            "stacks": [{**dataclasses.asdict(s), "bytes": s.bytes} for s in self.stacks],
            "sample": None
            if sampled is None
            else {
                "batches": sampled.batches,
                "needs": {
                    stack: {**dataclasses.asdict(need), "ids_per_sample": need.ids_per_sample}
                    for stack, need in sampled.needs.items()
                },
                "ids_outside_of_tables": dict(sampled.outside),
                "limits": limits(sampled.needs),
            },
            "remarks": list(self.remarks),
        }

    def lines(self) -> Iterator[str]:
        """Yields the lines of a report."""
        per_core = SPARSE_CORES_PER_DEVICE[self.target.kind]
        where = self.sparse_cores or f"{per_core} SparseCores on each core"
        yield f"On {self.target.kind}, with stock's TPUEmbeddingV2: {where}"
        yield from self._stack_lines()
        yield from (f"  note: {remark}" for remark in self.remarks)
        if self.sampled is not None:
            yield from _sample_lines(self.sampled)
        for outcome, effects in itertools.groupby(self.effects, lambda effect: effect.outcome):
            yield ""
            yield f"{outcome}: {SPARSE_CORE_OUTCOMES[outcome]}"
            for _, group in itertools.groupby(effects, lambda effect: effect.rule):
                yield from _effect_lines(list(group))

    def _stack_lines(self) -> Iterator[str]:
        for stack in self.stacks:
            slots = f", {', '.join(stack.slots)}" if stack.slots else ""
            tables = ", ".join(stack.tables)
            yield (
                f"  stack {stack.name} of {len(stack.tables)} table(s), {tables}: on each "
                f"SparseCore [{stack.rows}, {stack.dim}] float32{slots}, {readable(stack.bytes)}"
            )
        if self.stacks:
            each = sum(stack.bytes for stack in self.stacks)
            of_core = each * SPARSE_CORES_PER_DEVICE[self.target.kind]
            yield f"  all stacks: {readable(each)} per SparseCore, {readable(of_core)} per core"


def audit_notes(notes: Iterable[Note], target: Target) -> SparseCoreAudit:
    """Returns what becomes of the settings of which there are notes, and nothing about tables."""
    return SparseCoreAudit(target, _effects(notes))


def audit_tables(
    spec: Object, legacy: LegacySpec, notes: Iterable[Note], target: Target
) -> SparseCoreAudit:
    """Returns what becomes of a spec; `notes` are of its settings, and others of the program.

    Raises InvalidSpec if a table has no optimizer.
    """
    cores = target.cores or 1
    remarks, notes = [], list(notes)
    per_device = SPARSE_CORES_PER_DEVICE[target.kind]
    try:
        sparse_cores = SparseCores(cores, per_device)
    except errors.InvalidSpec as error:
        return SparseCoreAudit(target, _effects(notes), remarks=(f"No such machine: {error}",))
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
        for name, of_stack in stacks_of(layouts.values()).items()
    )
    if target.batch_size is None:
        remarks.append("the batch size is unknown: give --batch_size, or --run the program")
    else:
        remarks += _batch_remarks(legacy, target.batch_size, sparse_cores)
    return SparseCoreAudit(target, _effects(notes), sparse_cores, stacks, remarks=tuple(remarks))


def layouts_of_spec(
    spec: Object, legacy: LegacySpec, sparse_cores: SparseCores, batch_size: int | None
) -> dict[str, TableLayout]:
    """Returns the layout of each table of a spec, as TPUEmbeddingV2 computes it."""
    # The features of the migrated program are a dict, whose first key decides.
    first = min(legacy.features, key=lambda feature: feature.key, default=None)
    samples = (batch_size or 0) // sparse_cores.cores
    tables = [
        StackableTable(
            known.name,
            *known.shape,
            group=known.group,
            samples=samples * (first.max_sequence_length or 1),
            features=1,
        )
        if first is not None and first.table == known.name
        else StackableTable(known.name, *known.shape, group=known.group)
        for known in tables_of_spec(spec)
        if known.shape is not None
    ]
    return table_layouts(tables, sparse_cores)


def limits(needs: Mapping[str, Need]) -> dict[str, Object]:
    """Returns arguments of stock's SparseCoreEmbeddingConfig with a quarter more than is needed."""

    def with_room(number: int) -> int:
        return -(-int(number * _HEAD_ROOM + 1) // _MULTIPLE) * _MULTIPLE

    per_sample = max((need.ids_per_sample for need in needs.values()), default=1)
    return {
        "max_ids_per_chip_per_sample": with_room(per_sample),
        "max_ids_per_table": {stack: with_room(need.ids) for stack, need in needs.items()},
        "max_unique_ids_per_table": {
            stack: with_room(need.unique_ids) for stack, need in needs.items()
        },
    }


def _effects(notes: Iterable[Note]) -> tuple[Effect, ...]:
    outcomes, rules = list(SPARSE_CORE_OUTCOMES), list(ROWS)
    effects = [
        Effect(note.rule, str(note.where), render.shown(note), *ROWS[note.rule].sparse_core)
        for note in notes
        if note.rule != "sparse_core"
    ]
    return tuple(
        sorted(
            dict.fromkeys(effects),
            key=lambda effect: (outcomes.index(effect.outcome), rules.index(effect.rule)),
        )
    )


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


def _sample_lines(sampled: Sampled) -> Iterator[str]:
    yield (
        f"  {sampled.batches} batch(es) of the program's data need, of each SparseCore and "
        f"partition (by default {IDS_PER_PARTITION} ids, as many different ones, and "
        f"{IDS_PER_SAMPLE} per sample):"
    )
    for stack, need in sampled.needs.items():
        yield (
            f"    stack {stack}: {need.ids} ids, {need.unique_ids} different ones; "
            f"{need.ids_per_sample} per sample, padding included"
        )
    proposed = ", ".join(f"{name}={value}" for name, value in limits(sampled.needs).items())
    yield f"    with a quarter more: SparseCoreEmbeddingConfig({proposed})"
    for feature, count in sampled.outside.items():
        yield f"    feature {feature!r}: {count} id(s) outside of its table"


def _effect_lines(effects: Sequence[Effect]) -> Iterator[str]:
    if effects[0].outcome == "same":
        yield f"  {effects[0].rule}"
        return
    places: dict[str, list[str]] = {}
    for effect in effects:
        places.setdefault(effect.where, []).extend([effect.value] if effect.value else [])
    shown = "; ".join(
        f"{where}: {', '.join(values)}" if values else where for where, values in places.items()
    )
    way_out = f" -> {effects[0].way_out}" if effects[0].way_out else ""
    for indent, text in (
        (2, f"{effects[0].rule}, {shown}"),
        (4, f"{effects[0].effect}{way_out}"),
    ):
        yield from textwrap.wrap(
            text,
            96,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + 2),
            break_on_hyphens=False,
        )


def note_of_machine(num_shards: int) -> Note:
    """Returns the note of a program's number of cores."""
    return Note("num_shards", Place("TPUConfig"), SourceText(f"num_shards={num_shards}"))
