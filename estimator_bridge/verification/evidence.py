"""Holds the arrays around the first divergence, in which causes are searched for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import (
    VARIABLES,
    SideDescription,
    Step,
    TableDescription,
    Values,
)
from tf2_engine.types import Array, Object

StepPair = tuple[Step, Step]
"""The same step of both sides."""


class Residual(NamedTuple):
    """How far one array of side B is from what is expected at one step.

    Attributes:
        apart: the distance of each element from its expected value; infinite if one side is NaN.
        allowed: the tolerance of each element.
        moved: how far each element moved on side A; for arrays that every step computes anew, the
            elements' values.
        bias: the tolerance for an error that all elements have in one direction.
        rows: the rows of a table that the arrays contain; None means all.
        jumps: how many samples exceed the usual rounding, on side B and in the perturbed run.
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
    """The step at which the sides first differ, and the steps around it. Not part of reports.

    Attributes:
        states: both sides at the last two reads of the variables before the step, latest first.
        after, following: both sides after the step, and after the next step.
        position: the zero-based index of the step.
        ids: the `lookups.RecordedIds` of each feature in the global batch.
        residuals: keyed by group and side A's name of the array; empty in a free run.
        systematic: the factor by which side B moves further, for arrays in which only all elements
            together show it.
    """

    settings: tuple[SideDescription, SideDescription]
    states: tuple[StepPair, ...]
    after: StepPair
    batch: Values | None
    position: int = 0
    ids: Mapping[str, Object] = MappingProxyType({})
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
