"""Audits a program for TPUs with SparseCores, without TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from estimator_bridge.readable_sizes import readable
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import ROWS
from estimator_bridge.settings.legacy_spec import Note
from estimator_bridge.settings.row import SPARSE_CORE_OUTCOMES
from tf2_engine import plain_text
from tf2_engine.types import Object

# These modules import NumPy, which an audit without a target does not need.
if TYPE_CHECKING:
    from tf2_engine.sparsecore_layout import SparseCores
    from tf2_engine.sparsecore_limits import Need

_HEAD_ROOM = 1.25  # factor by which proposed limits exceed what a sample of the data needs
_MULTIPLE = 8

TORCH = "torch"
"""The only target that is not a TPU."""


class Target(NamedTuple):
    """The machine that an audit is for.

    Attributes:
        kind: one of `SPARSE_CORES_PER_DEVICE`, or `TORCH`, for which the other fields are ignored.
        cores: the cores of all hosts together. If None, the number that the program sets, or 1.
        batch_size: samples of the global batch. If None, the program's batch size, which is known
            only if the program is run.
        sample: how many batches of the program's own data to examine.
    """

    kind: str
    cores: int | None = None
    batch_size: int | None = None
    sample: int = 0


class Effect(NamedTuple):
    """What one setting does on SparseCores; `outcome` is one of `SPARSE_CORE_OUTCOMES`."""

    rule: str
    where: str
    value: str
    outcome: str
    effect: str
    way_out: str


class Sampled(NamedTuple):
    """The limits that sampled batches need, by stack, and counts of invalid ids, by feature."""

    batches: int
    needs: Mapping[str, Need]
    outside: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class StackSize:
    """The size of a stack. A stack consists of tables that SparseCores store together."""

    name: str
    tables: tuple[str, ...]
    rows: int
    dim: int
    slots: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return 4 * self.rows * self.dim * (1 + len(self.slots))


@dataclasses.dataclass(frozen=True)
class SparseCoreAudit:
    """The effects of settings on a kind of TPU with SparseCores, and the stacks of the tables.

    Attributes:
        effects: the effect of every setting, worst outcome first.
        stacks: empty if there are no tables, or if the tables do not fit on this kind of TPU.
        sampled: None if no batches were sampled.
    """

    target: Target
    effects: tuple[Effect, ...]
    sparse_cores: SparseCores | None = None
    stacks: tuple[StackSize, ...] = ()
    sampled: Sampled | None = None
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Object]:
        cores, sampled = self.sparse_cores, self.sampled
        return {
            "target": self.target.kind,
            "cores": None if cores is None else cores.cores,
            "sparse_cores_per_core": self._per_core(),
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
        where = self.sparse_cores or f"{self._per_core()} SparseCores on each core"
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
            of_core = each * self._per_core()
            yield f"  all stacks: {readable(each)} per SparseCore, {readable(of_core)} per core"

    def _per_core(self) -> int:
        from tf2_engine.sparsecore_layout import SPARSE_CORES_PER_DEVICE

        return SPARSE_CORES_PER_DEVICE[self.target.kind]


def limits(needs: Mapping[str, Need]) -> dict[str, Object]:
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


def effects_of(notes: Iterable[Note]) -> tuple[Effect, ...]:
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


def _sample_lines(sampled: Sampled) -> Iterator[str]:
    from tf2_engine.sparsecore_limits import IDS_PER_PARTITION, IDS_PER_SAMPLE

    yield (
        f"  {sampled.batches} batch(es) of the program's data need these limits for each "
        f"SparseCore and partition (the defaults are {IDS_PER_PARTITION} ids, the same number "
        f"of distinct ids, and {IDS_PER_SAMPLE} ids per sample):"
    )
    for stack, need in sampled.needs.items():
        yield (
            f"    stack {stack}: {need.ids} ids, {need.unique_ids} distinct ids, "
            f"{need.ids_per_sample} ids per sample, padding included"
        )
    proposed = ", ".join(f"{name}={value}" for name, value in limits(sampled.needs).items())
    yield f"    proposed, with a reserve of a quarter: SparseCoreLimits({proposed})"
    yield "    (a class of tf2_engine with the arguments of stock's SparseCoreEmbeddingConfig)"
    for feature, count in sampled.outside.items():
        yield f"    feature {feature!r}: {count} id(s) outside its table"


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
    yield from lines_of_rule(effects[0], shown)


def lines_of_rule(effect: Object, places: str) -> Iterator[str]:
    way_out = f" -> {effect.way_out}" if effect.way_out else ""
    yield from wrapped(2, f"{effect.rule}, {places}")
    yield from wrapped(4, f"{effect.effect}{way_out}")


def wrapped(indent: int, text: str) -> list[str]:
    return textwrap.wrap(
        plain_text.plain(text),
        96,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_on_hyphens=False,
    )
