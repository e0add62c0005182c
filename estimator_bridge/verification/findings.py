"""The findings of a comparison, and the arrays around the first divergence."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import (
    LOSS,
    VARIABLES,
    RecordedStep,
    SideDescription,
    TableDescription,
    Values,
)
from tf2_engine.types import Array, Object

TABLE, SLOT, DENSE, ACTIVATION, GRADIENT = "table", "slot", "dense", "activation", "gradient"
"""The roles of arrays. A slot has the role "slot <name>", and the loss has the role "loss"."""
STAGES = (ACTIVATION, LOSS, GRADIENT, SLOT, TABLE, DENSE)
"""The roles in the order in which a step computes them; an error affects all later roles."""

LIMIT = 0.1
"""An array is undecided if rounding could hide an error of a tenth of how far it moved."""

_MAX_IDS_SHOWN = 8
StepPair = tuple[RecordedStep, RecordedStep]
"""The same step on both sides."""


class Status(enum.IntEnum):
    """The verdict of a comparison, which is also the exit status of the command."""

    EQUAL = 0
    DIFFERENT = 1
    UNKNOWN = 2
    """Only one side failed, or nothing was compared."""
    UNDECIDED = 3
    """The compared steps are too few to tell faults from rounding."""


class Point(NamedTuple):
    """An array's worst element at one step; if `systematic`, the array differs as a whole."""

    step: int
    difference: float
    relative: float
    ulps: int
    allowed: float
    systematic: bool = False

    @property
    def equal(self) -> bool:
        return self.difference <= self.allowed and not self.systematic

    @property
    def share(self) -> float:
        if not self.difference or math.isinf(self.allowed):
            return 0.0
        return self.difference / self.allowed if self.allowed else math.inf


class Divergence(NamedTuple):
    """The first difference of an array that exceeds its tolerance.

    Attributes:
        row: the row that differs most: an id of a table, or a sample of an activation.
        element: the indices, within that row, of the element that differs most.
        a, b: the values of both sides, or the shapes if these differ.
        rows: the number of rows that differ.
        ids: for a table, the id of the row; for an activation, the ids of the sample.
        note: describes a difference that no single element shows.
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
    """How one array compares over all steps.

    Attributes:
        name: the array's name on side A.
        visible: the smallest error that the comparison would see, as a fraction of how far the
            array moved (or of its values, if every step computes them anew).
        moved: whether the array moved (or is not zero, if every step computes it anew).
        rows_decided: the number of moved rows in which an error of a tenth would be seen.
        is_noise: whether the array is a gradient that consists of rounding errors only.
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
        return not self.moved or self.is_noise or self.visible <= LIMIT

    @property
    def stage(self) -> str:
        return self.role.split()[0]

    @property
    def largest(self) -> Point:
        return max(self.points, key=lambda point: point.difference)

    @property
    def share(self) -> float:
        return max((point.share for point in self.points), default=math.inf)

    @property
    def order(self) -> tuple[float, float, int, str]:
        stage = STAGES.index(self.stage)
        if self.first is not None:
            return self.first.step, stage, 0, self.name
        return math.inf, -self.share, stage, self.name


class Difference(NamedTuple):
    """A setting, or a field of a device configuration, that differs."""

    name: str
    a: str
    b: str


class Outcome(NamedTuple):
    """How a metric, a prediction, an exported variable or an exported model's answer differs.

    Attributes:
        kind: the kind of outcome with its number, such as "evaluation-0".
        note: describes a difference that is not numerical.
        where: where the largest difference is, with the values of both sides.
        why: the reason for the tolerance.
        cause: the name of the cause, if known.
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
        return f"{self.kind} {self.name}".strip()

    @property
    def equal(self) -> bool:
        return not self.note and self.difference <= self.allowed


class Batches(NamedTuple):
    """How many batches were compared, or replayed on side B, and how they differ."""

    number: int
    replayed: bool
    first_different: int | None
    reordered: bool
    unlike: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return self.first_different is None and not self.unlike

    def __str__(self) -> str:
        if self.unlike:
            return f"the two sides' batches differ in type: {'; '.join(self.unlike)}"
        if self.first_different is None:
            return "both sides have the same batches"
        read = "the same batches in another order" if self.reordered else "different data"
        return f"the sides read {read}, from batch {self.first_different} on"


class Cause(NamedTuple):
    """A known reason for a divergence: a short name for scripts, and the observation."""

    name: str
    text: str


def some(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def listed(parts: Sequence[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def differing_settings(
    a: Mapping[str, Object], b: Mapping[str, Object]
) -> Iterator[tuple[str, str, str, str]]:
    if not a["settings"] or not b["settings"]:
        return
    both = [{(where, name): value for where, name, value, _ in s["settings"]} for s in (a, b)]
    for (where, name), value_a, value_b in differing(*both):
        yield where, name, value_a, value_b


def differing(
    a: Mapping[Object, str], b: Mapping[Object, str]
) -> Iterator[tuple[Object, str, str]]:
    for key in sorted({*a, *b}):
        one, other = a.get(key, "not set"), b.get(key, "not set")
        if one != other:
            yield key, one, other


class Residual(NamedTuple):
    """How far one array of side B is from what is expected at one step.

    Attributes:
        apart: the distance of each element from its expected value; infinite if one side is NaN.
        allowed: the tolerance of each element.
        moved: how far each element moved on side A; for arrays that every step computes anew, the
            elements' values.
        bias: the tolerance for errors that have the same direction in all elements.
        rows: the rows of a table that the arrays contain; None means all.
        jumps: two counts of samples that differ by more than rounding usually causes, for instance
            because a relu's input crosses 0: the samples of side B, and those of side A's second
            run, in which the last bits are changed.
    """

    a: Array
    b: Array
    apart: Array
    allowed: Array
    moved: Array
    bias: Array | None = None
    rows: Array | None = None
    jumps: tuple[int, int] | None = None

    @property
    def beyond(self) -> Array:
        return np.abs(self.apart) > self.allowed


class Evidence(NamedTuple):
    """The step at which the sides first differ, and the steps around it. Reports leave it out.

    Attributes:
        states: both sides at the two latest earlier steps whose variables were read, latest first.
        after, following: both sides after the step, and after the next step.
        position: the zero-based index of the step.
        ids: the `lookups.RecordedIds` of each feature in the global batch.
        previous_ids: the ids of the previous step; empty if there is no such step.
        residuals: keyed by an array's group and its name on side A; empty in a free run.
        systematic: maps arrays in which no single element shows a difference to the number f if
            side B moves them 1 + f times as far as side A.
    """

    settings: tuple[SideDescription, SideDescription]
    states: tuple[StepPair, ...]
    after: StepPair
    batch: Values | None
    position: int = 0
    ids: Mapping[str, Object] = MappingProxyType({})
    previous_ids: Mapping[str, Object] = MappingProxyType({})
    following: StepPair | None = None
    residuals: Mapping[tuple[str, str], Residual] = MappingProxyType({})
    systematic: Mapping[tuple[str, str], float] = MappingProxyType({})

    @property
    def before(self) -> StepPair | None:
        is_known = self.states and self.states[0][0].number == self.after[0].number - 1
        return self.states[0] if is_known else None

    def values(self, group: str) -> tuple[Values, Values]:
        a, b = self.after
        return a.values.get(group, {}), b.values.get(group, {})

    def before_of(self, variable: str) -> Array | None:
        before = self.before
        return None if before is None else before[0].values[VARIABLES].get(variable)

    def diverges(self, group: str, name: str, a: Array, b: Array) -> bool:
        residual = self.residuals.get((group, name))
        if residual is None:
            return not close(a, b)
        return bool(residual.beyond.any()) or (group, name) in self.systematic

    def tables(self) -> Iterator[tuple[TableDescription, Array, Array]]:
        for table in self.settings[0]["tables"]:
            if table["variable"] in (parts := self.parts(table)):
                yield table, *parts[table["variable"]]

    def slots(self, table: TableDescription) -> Iterator[tuple[str, str, Array, Array]]:
        parts = self.parts(table)
        for variable, slot in table["slots"].items():
            if variable in parts:
                yield slot, variable, *parts[variable]

    def parts(self, table: TableDescription) -> dict[str, tuple[Array, Array]]:
        names_b: dict[str | None, str] = {}
        for other in self.settings[1]["tables"]:
            if other["name"] == table["name"]:
                names_b = {
                    None: other["variable"],
                    **{s: name for name, s in other["slots"].items()},
                }
        values_a, values_b = self.values(VARIABLES)
        parts = {}
        for name, slot in {table["variable"]: None, **table["slots"]}.items():
            a, b = values_a.get(name), values_b.get(names_b.get(slot, ""))
            if a is not None and b is not None and a.shape == b.shape:
                parts[name] = a, b
        return parts


def close(one: Array, other: Array, relative: float = 1e-6) -> bool:
    if one.shape != other.shape:
        return False
    largest = float(np.max(np.abs(one), initial=0.0))
    return bool(np.max(np.abs(one - other), initial=0.0) <= relative * largest)
