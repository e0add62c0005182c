"""The arrays around the first divergence, in which causes are looked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from estimator_bridge.verify.record import recording
from estimator_bridge.verify.record.recording import SideDescription, TableDescription, Values
from tf2_engine.types import Array, Object

StepPair = tuple[recording.Step, recording.Step]
"""The same step of both sides."""


class Residual(NamedTuple):
    """One array at one step.

    Attributes:
        a, b: both sides.
        apart: how far side B is from where it should be, float64; infinite for a NaN beside a
            number.
        allowed: how far each element may be.
        moved: how far each element moves on side A, or its value where it is computed anew.
        bias: how far elements may be off all in one direction; None where directions tell nothing.
        rows: which rows of a table the arrays are; None is all.
    """

    a: Array
    b: Array
    apart: Array
    allowed: Array
    moved: Array
    bias: Array | None = None
    rows: Array | None = None

    @property
    def beyond(self) -> Array:
        """Which elements are further off than they may be."""
        return np.abs(self.apart) > self.allowed


class Evidence(NamedTuple):
    """The step at which sides first differ, and those around it. Not part of a report.

    Attributes:
        settings: both sides.
        states: both sides at the last two looks at the variables before, the latest first.
        after: both sides at the step.
        batch: what the step was trained on; None if that is not known.
        position: of the step, from 0.
        ids: of each feature in the batch of all cores, `lookups.RecordedIds`; None where they are
            not known.
        following: both sides at the step after it; None without one.
        residuals: of each array of the step, by group and side A's name, what remains of its
            difference and how much is allowed; empty where sides run freely.
        systematic: by which part of A's movement B moves further in the arrays of which all
            elements together show it.
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
        """Both sides just before the step, if they were looked at then."""
        is_known = self.states and self.states[0][0].number == self.after[0].number - 1
        return self.states[0] if is_known else None

    def values(self, group: str) -> tuple[Values, Values]:
        """Returns the arrays of a group on both sides after the step."""
        a, b = self.after
        return a.values.get(group, {}), b.values.get(group, {})

    def before_of(self, variable: str) -> Array | None:
        """Returns a variable of side A just before the step; None if it is not known."""
        before = self.before
        return None if before is None else before[0].values[recording.VARIABLES].get(variable)

    def diverges(self, group: str, name: str, a: Array, b: Array) -> bool:
        """Returns whether an array, `a` and `b` on the sides, diverges in the step."""
        residual = self.residuals.get((group, name))
        if residual is None:
            return not close(a, b)
        return bool(residual.beyond.any()) or (group, name) in self.systematic

    def tables(self) -> Iterator[tuple[TableDescription, Array, Array]]:
        """Yields every table of side A with its rows on both sides after the step."""
        variables_b = {table["name"]: table["variable"] for table in self.settings[1]["tables"]}
        for table in self.settings[0]["tables"]:
            pair = self._pair(table["variable"], variables_b.get(table["name"], ""))
            if pair is not None:
                yield table, *pair

    def slots(self, table: TableDescription) -> Iterator[tuple[str, str, Array, Array]]:
        """Yields the slots of one of side A's tables that both sides have.

        Each is its name, side A's variable, and the values of both sides after the step.
        """
        variables_b = {
            slot: variable
            for other in self.settings[1]["tables"]
            if other["name"] == table["name"]
            for variable, slot in other["slots"].items()
        }
        for variable, slot in table["slots"].items():
            pair = self._pair(variable, variables_b.get(slot, ""))
            if pair is not None:
                yield slot, variable, *pair

    def _pair(self, variable_a: str, variable_b: str) -> tuple[Array, Array] | None:
        """Returns a variable of each side after the step; None if they are of different shapes."""
        values_a, values_b = self.values(recording.VARIABLES)
        a, b = values_a.get(variable_a), values_b.get(variable_b)
        return None if a is None or b is None or a.shape != b.shape else (a, b)


def close(one: Array, other: Array, relative: float = 1e-6) -> bool:
    """Returns whether arrays are equal but for a few roundings of their largest elements."""
    if one.shape != other.shape:
        return False
    largest = float(np.max(np.abs(one), initial=0.0))
    return bool(np.max(np.abs(one - other), initial=0.0) <= relative * largest)
