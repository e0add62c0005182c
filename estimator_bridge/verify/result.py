"""What a comparison found: plain values that every report is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from estimator_bridge.verify.evidence import Evidence

STAGES = ("activation", "loss", "gradient", "slot", "table", "dense")
"""The order of a step: what is wrong in one is so in those after it."""


_IDS = 8
"""How many ids of a sample are shown."""


class Point(NamedTuple):
    """One array at one step.

    Attributes:
        difference: the largest absolute difference of an element.
        relative: the same, relative to the largest magnitude of the array.
        ulps: how many float32 numbers these two elements are apart.
        allowed: the bound of `difference`.
    """

    step: int
    difference: float
    relative: float
    ulps: int
    allowed: float


class Divergence(NamedTuple):
    """Where an array first differs by more than is allowed.

    Attributes:
        row: of a table, its id; of an activation, the sample. None for a number.
        element: the further indices.
        a, b: both values, or both shapes.
        rows: how many rows differ.
        ids: of a table the id that has the row; of an activation those of the sample, in the
            order of the batch. Empty where that is not known.
    """

    step: int
    row: int | None
    element: list[int] | None
    a: str
    b: str
    rows: int
    ids: Sequence[int] = ()

    def __str__(self) -> str:
        where, many = "", ""
        if self.row is not None:
            where = f", row {self.row}"
            many = f"; {self.rows} row{'s differ' if self.rows != 1 else ' differs'}"
        if self.ids:
            shown = ", ".join(str(one) for one in self.ids[:_IDS])
            rest = ", …" if len(self.ids) > _IDS else ""
            where += f" (id{'s' if len(self.ids) > 1 else ''} {shown}{rest})"
        if self.element:
            where += f", element {self.element}"
        return f"step {self.step}{where}: {self.a} on A, {self.b} on B{many}"


@dataclasses.dataclass
class Series:
    """One array over the steps.

    Attributes:
        group: "variables", "activations", "gradients" or "loss".
        name: side A's.
        table: whose it is, or None.
        role: see `names.Named`.
        points: one for each step at which it was compared.
        first: the first divergence, or None.
    """

    group: str
    name: str
    table: str | None
    role: str
    points: list[Point] = dataclasses.field(default_factory=list)
    first: Divergence | None = None

    @property
    def largest(self) -> Point:
        """The point with the largest difference; there is one where shapes agree."""
        return max(self.points, key=lambda point: point.difference)

    @property
    def worst(self) -> Point | None:
        """The point that is largest relative to what is allowed."""
        return max(self.points, key=share, default=None)

    @property
    def share(self) -> float:
        """The largest share of what is allowed; infinite for another shape."""
        if self.worst is None:
            return float("inf")
        return share(self.worst)

    @property
    def order(self) -> tuple[float, float, int, str]:
        """What diverged first comes first, in the order of a step; then what came closest to it."""
        stage = STAGES.index(self.role.split()[0])
        if self.first is not None:
            return self.first.step, stage, 0, self.name
        return float("inf"), -self.share, stage, self.name


class Difference(NamedTuple):
    """A setting, or field of a device configuration, that differs."""

    name: str
    a: str
    b: str


class Outcome(NamedTuple):
    """A metric, prediction or exported variable.

    Attributes:
        kind: such as "evaluation-0".
        note: why it is equal or not, in words; "" where numbers say it.
    """

    kind: str
    name: str
    difference: float
    allowed: float
    note: str = ""

    @property
    def equal(self) -> bool:
        """Whether it is within what is allowed."""
        return not self.note and self.difference <= self.allowed


class Batches(NamedTuple):
    """The batches of both sides.

    Attributes:
        number: how many were compared, or replayed.
        replayed: whether side B was given those of side A.
        first_different: the number of the first batch that differs, or None.
        reordered: whether both sides had the same batches, in another order.
    """

    number: int
    replayed: bool
    first_different: int | None
    reordered: bool


class Cause(NamedTuple):
    """A known reason for a divergence.

    Attributes:
        name: short; tests and scripts look at it.
        text: what was seen, and what to do.
    """

    name: str
    text: str


@dataclasses.dataclass
class Result:
    """Everything that a comparison found.

    Attributes:
        settings: both sides, as `description.describe` returns them.
        num_terms: of the tolerance: the most terms in one sum.
        measured: whether what the model makes of rounding errors was measured, and is allowed.
        steps: global steps that were compared, the start first.
        series: every array, what diverged first in front.
        config: differences of what the devices are configured with; None if a side has no device.
        only: names of arrays that one side alone has.
        remarks: what else keeps the sides from being equal.
        notes: what could not be compared, and does not tell the sides apart.
        causes: found by `causes.explain`.
    """

    settings: tuple[dict[str, Any], dict[str, Any]]
    num_terms: int
    measured: bool
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

    def __str__(self) -> str:
        from estimator_bridge.verify import text

        return "\n".join(text.lines(self))

    @property
    def first(self) -> Series | None:
        """The array that diverged first."""
        return self.series[0] if self.series and self.series[0].first else None

    @property
    def numbers_agree(self) -> bool:
        """Whether every number is within what is allowed."""
        return self.first is None and all(outcome.equal for outcome in self.outcomes)

    @property
    def equal(self) -> bool:
        """The verdict."""
        return (
            bool(self.series)
            and self.numbers_agree
            and not self.config
            and self.batches.first_different is None
            and not any(self.only)
            and not self.remarks
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the result as a dict that fits JSON."""
        return {
            "equal": self.equal,
            "sides": {"a": self.settings[0], "b": self.settings[1]},
            "steps": self.steps,
            "tolerance": {"num_terms": self.num_terms, "measured": self.measured},
            "first": None if self.first is None else _series_dict(self.first),
            "causes": [cause._asdict() for cause in self.causes],
            "series": [_series_dict(series) for series in self.series],
            "config": None if self.config is None else [d._asdict() for d in self.config],
            "batches": self.batches._asdict(),
            "outcomes": [{**o._asdict(), "equal": o.equal} for o in self.outcomes],
            "only": {"a": self.only[0], "b": self.only[1]},
            "remarks": self.remarks,
            "notes": self.notes,
        }


def _series_dict(series: Series) -> dict[str, Any]:
    return {
        "group": series.group,
        "name": series.name,
        "table": series.table,
        "role": series.role,
        "first": None if series.first is None else series.first._asdict(),
        "points": [point._asdict() for point in series.points],
    }


def share(point: Point) -> float:
    """Returns the difference as a share of what is allowed."""
    if point.allowed:
        return point.difference / point.allowed
    return float("inf") if point.difference else 0.0


def differing_settings(
    a: Mapping[str, Any], b: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    """Yields of each setting that is another one on side B: of what, its name, and both values."""
    both = [{(where, name): value for where, name, value, _ in s["settings"]} for s in (a, b)]
    for where, name in sorted({*both[0], *both[1]}):
        ours, theirs = (side.get((where, name), "not set") for side in both)
        if ours != theirs:
            yield where, name, ours, theirs
