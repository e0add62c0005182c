"""The findings of a comparison: plain values that every report is made of.

docs/verify.md describes the fields, as those of `--json`.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from estimator_bridge.verify.evidence import Evidence
from estimator_bridge.verify.record.recording import LOSS, SideDescription
from tf2_engine.types import Object

TABLE, SLOT, DENSE, ACTIVATION, GRADIENT = "table", "slot", "dense", "activation", "gradient"
"""The roles of arrays; that of the loss is "loss", and of a slot "slot <name>"."""
STAGES = (ACTIVATION, LOSS, GRADIENT, SLOT, TABLE, DENSE)
"""The roles in the order of a step: an error in one carries on to those after it."""

LIMIT = 0.1
"""The divergence above which an array is undecided: a tenth of its movement passes for rounding."""

_MAX_IDS_SHOWN = 8


class Status(enum.IntEnum):
    """A verdict, and the exit status of the command."""

    EQUAL = 0
    DIFFERENT = 1
    UNKNOWN = 2
    """A side failed where the other did not, or nothing was compared."""
    UNDECIDED = 3
    """The steps that were compared are too few to tell faults from rounding."""


class Point(NamedTuple):
    """One array at one step: the largest absolute difference of an element, and its tolerance.

    Attributes:
        relative: the difference, relative to the largest magnitude of the array.
        ulps: how many float32 numbers these two elements are apart.
        systematic: whether elements differ in one direction, each within the tolerance.
    """

    step: int
    difference: float
    relative: float
    ulps: int
    allowed: float
    systematic: bool = False

    @property
    def equal(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= self.allowed and not self.systematic

    @property
    def share(self) -> float:
        """The difference as a share of the tolerance."""
        beyond = math.inf if self.difference else 0.0
        return self.difference / self.allowed if self.allowed else beyond


class Divergence(NamedTuple):
    """The first difference of an array beyond the tolerance.

    Attributes:
        row: of a table, its id; of an activation, the sample. None for a number.
        element: the further indices.
        a, b: both values, or both shapes.
        rows: how many rows differ.
        ids: of a table's row, or of an activation's sample; empty where that is not known.
        note: what is seen where no single element shows it; "" where one does.
    """

    step: int
    row: int | None
    element: list[int] | None
    a: str
    b: str
    rows: int
    ids: Sequence[int] = ()
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return f"step {self.step}: {self.note}"
        where, count = "", ""
        if self.row is not None:
            where = f", row {self.row}"
            count = f"; {self.rows} row{'s differ' if self.rows != 1 else ' differs'}"
        if self.ids:
            shown = ", ".join(map(str, self.ids[:_MAX_IDS_SHOWN]))
            rest = ", …" if len(self.ids) > _MAX_IDS_SHOWN else ""
            where += f" (id{'s' if len(self.ids) > 1 else ''} {shown}{rest})"
        if self.element:
            where += f", element {self.element}"
        return f"step {self.step}{where}: {self.a} on A, {self.b} on B{count}"


@dataclasses.dataclass
class Series:
    """One array over the steps.

    Attributes:
        group: "variables", "activations", "gradients" or "loss".
        name: side A's.
        table: whose it is, or None.
        role: one of `STAGES`; of a slot "slot <name>".
        first: the first divergence, or None.
        points: one for each step at which it was compared.
        visible: the smallest divergence that would have been seen, as a factor on how far the array
            moves, or on its values where they are computed anew; infinite if none would.
        moved: whether it has moved, or has values other than zero.
        rows_moved, rows_decided: rows of a table that have moved, and those of them of which a
            divergence of a tenth would have been seen.
        undecided_row: a row that has moved and of which it would not; None without one.
        is_noise: whether it is a gradient that is nothing but rounding.
    """

    group: str
    name: str
    table: str | None
    role: str
    first: Divergence | None = None
    points: list[Point] = dataclasses.field(default_factory=list)
    visible: float = math.inf
    moved: bool = False
    rows_moved: int = 0
    rows_decided: int = 0
    undecided_row: int | None = None
    is_noise: bool = False

    @property
    def decided(self) -> bool:
        """Whether a divergence of a tenth would have been seen, or there is nothing to diverge."""
        return not self.moved or self.is_noise or self.visible <= LIMIT

    @property
    def stage(self) -> str:
        """The role without the name of a slot."""
        return self.role.split()[0]

    @property
    def largest(self) -> Point:
        """The point with the largest difference; there is one where shapes agree."""
        return max(self.points, key=lambda point: point.difference)

    @property
    def share(self) -> float:
        """The largest share of the tolerance at any step; infinite for another shape."""
        return max((point.share for point in self.points), default=math.inf)

    @property
    def order(self) -> tuple[float, float, int, str]:
        """A key that sorts diverged arrays by step and stage, then the rest by share."""
        stage = STAGES.index(self.stage)
        if self.first is not None:
            return self.first.step, stage, 0, self.name
        return math.inf, -self.share, stage, self.name


class Difference(NamedTuple):
    """A setting, or field of a device configuration, that differs."""

    name: str
    a: str
    b: str


class Outcome(NamedTuple):
    """A metric, prediction, exported variable or answer of an exported model.

    Attributes:
        kind: such as "evaluation-0".
        note: why it differs, in words; "" where numbers say it.
        where: the largest difference, with both values; "" without one.
        why: what the tolerance comes from.
        cause: the name of the cause, where the outcome itself shows it; "" where it does not.
    """

    kind: str
    name: str
    difference: float
    allowed: float
    note: str = ""
    where: str = ""
    why: str = ""
    cause: str = ""

    @property
    def title(self) -> str:
        """The kind and the name."""
        return f"{self.kind} {self.name}".strip()

    @property
    def equal(self) -> bool:
        """Whether it is within the tolerance."""
        return not self.note and self.difference <= self.allowed


class Batches(NamedTuple):
    """The numbers of batches of both sides that were compared, or were replayed on side B.

    Attributes:
        first_different: the number of the first batch that differs, or None.
        reordered: whether both sides had the same batches, in another order.
        unlike: how the batches differ in names, types or shapes, in words.
    """

    number: int
    replayed: bool
    first_different: int | None
    reordered: bool
    unlike: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether both sides had the same data, in the same types."""
        return self.first_different is None and not self.unlike

    def __str__(self) -> str:
        if self.unlike:
            return f"the batches of the sides differ in type: {'; '.join(self.unlike)}"
        if self.first_different is None:
            return "the sides have the same batches"
        read = "the same batches in another order" if self.reordered else "other data"
        return f"the sides read {read}, from batch {self.first_different} on"


class Cause(NamedTuple):
    """A known reason for a divergence: a short name for scripts, and the observation as text."""

    name: str
    text: str


@dataclasses.dataclass
class Findings:
    """Everything that a comparison found.

    Attributes:
        settings: both sides.
        num_terms: of the tolerance: the most terms in one sum.
        measured: whether what the model makes of rounding errors was measured, and is allowed.
        steps: global steps that were compared, the start first.
        series: every array, what diverged first in front.
        config: differences of the device configurations; None if a side has no device.
        only: names of arrays that one side alone has.
        remarks: what else keeps the sides from being equal.
        evidence: the arrays around the first divergence; None without one.
        lockstep: whether side B went on from side A's state after every compared step.
        notes: what a reader has to know of the comparison.
        not_compared: what was left out, and why.
        failures: what failed on one side alone.
        about: with what, where, when and by whom it was compared; see `provenance`.
        undecided: the arrays of which faults cannot be told from rounding, with the reasons.
        diagnoses: of updates that differ, where they were made for the verdict already; else None.
    """

    settings: tuple[SideDescription, SideDescription]
    num_terms: int
    measured: bool
    lockstep: bool
    steps: list[int]
    series: list[Series]
    config: list[Difference] | None
    batches: Batches
    outcomes: list[Outcome]
    only: tuple[list[str], list[str]]
    remarks: list[str]
    evidence: Evidence | None
    notes: list[str] = dataclasses.field(default_factory=list)
    causes: list[Cause] = dataclasses.field(default_factory=list)
    not_compared: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    undecided: list[str] = dataclasses.field(default_factory=list)
    about: dict[str, str] = dataclasses.field(default_factory=dict)
    diagnoses: Sequence[Object] | None = None

    @property
    def first(self) -> Series | None:
        """The array that diverged first."""
        return self.series[0] if self.series and self.series[0].first else None

    @property
    def numbers_agree(self) -> bool:
        """Whether every number is within the tolerance."""
        return self.first is None and all(outcome.equal for outcome in self.outcomes)

    @property
    def status(self) -> Status:
        """The verdict: a difference counts more than an open question."""
        if self._differs:
            return Status.DIFFERENT
        if self.failures or not self.series:
            return Status.UNKNOWN
        return Status.UNDECIDED if self.undecided else Status.EQUAL

    @property
    def equal(self) -> bool:
        """Whether the verdict is that the sides are equal."""
        return self.status == Status.EQUAL

    @property
    def largest(self) -> float:
        """The largest difference of all that was compared; 0 where all is equal to the bit."""
        points = (one.largest.difference for one in self.series if one.points)
        outcomes = (outcome.difference for outcome in self.outcomes)
        return max(itertools.chain(points, outcomes), default=0.0)

    @property
    def _differs(self) -> bool:
        return (
            not self.numbers_agree
            or bool(self.config)
            or not self.batches.equal
            or any(self.only)
            or bool(self.remarks)
        )


def some(names: Sequence[str], most: int) -> str:
    """Returns names in a row; of more than so many the first, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def listed(parts: Sequence[str]) -> str:
    """Returns parts of a sentence in a row, the last after "and"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def differing_settings(
    a: Mapping[str, Object], b: Mapping[str, Object]
) -> Iterator[tuple[str, str, str, str]]:
    """Yields each setting that differs: its spec, table or feature, its name, and both values.

    A program without a legacy spec has no settings, and so none that differ.
    """
    if not a["settings"] or not b["settings"]:
        return
    both = [{(where, name): value for where, name, value, _ in s["settings"]} for s in (a, b)]
    for (where, name), value_a, value_b in differing(*both):
        yield where, name, value_a, value_b


def differing(
    a: Mapping[Object, str], b: Mapping[Object, str]
) -> Iterator[tuple[Object, str, str]]:
    """Yields each key of which two mappings have other values, and both; one may be "not set"."""
    for key in sorted({*a, *b}):
        one, other = a.get(key, "not set"), b.get(key, "not set")
        if one != other:
            yield key, one, other
