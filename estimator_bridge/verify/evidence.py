"""The arrays around the first divergence, in which causes are looked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from estimator_bridge.verify.record.recording import (
    VARIABLES,
    SideDescription,
    Step,
    TableDescription,
    Values,
)
from tf2_engine.types import Array

StepPair = tuple[Step, Step]
"""The same step of both sides."""


class Evidence(NamedTuple):
    """The step at which sides first differ, and what led to it. Not part of a report.

    Attributes:
        settings: both sides.
        states: both sides at the last two looks at the variables before, the latest first.
        after: both sides at the step.
        batch: what the step was trained on; None if that is not known.
    """

    settings: tuple[SideDescription, SideDescription]
    states: tuple[StepPair, ...]
    after: StepPair
    batch: Values | None

    @property
    def before(self) -> StepPair | None:
        """Both sides just before the step, if they were looked at then."""
        if self.states and self.states[0][0].number == self.after[0].number - 1:
            return self.states[0]
        return None

    def values(self, group: str) -> tuple[Values, Values]:
        """Returns the arrays of a group on both sides after the step."""
        a, b = self.after
        return a.values.get(group, {}), b.values.get(group, {})

    def before_of(self, variable: str) -> Array | None:
        """Returns a variable of side A just before the step; None if it is not known."""
        return None if self.before is None else self.before[0].values[VARIABLES].get(variable)

    def tables(self) -> Iterator[tuple[TableDescription, Array, Array]]:
        """Yields every table of side A with its rows on both sides after the step."""
        values_a, values_b = self.values(VARIABLES)
        variables_b = {table["name"]: table["variable"] for table in self.settings[1]["tables"]}
        for table in self.settings[0]["tables"]:
            a = values_a.get(table["variable"])
            b = values_b.get(variables_b.get(table["name"], ""))
            if a is not None and b is not None and a.shape == b.shape:
                yield table, a, b

    def slots(self, table: TableDescription) -> Iterator[tuple[str, Array | None, Array, Array]]:
        """Yields the slots of one of side A's tables that both sides have.

        Each is its name, its values before the step if they are known, and those of both sides
        after it.
        """
        values_a, values_b = self.values(VARIABLES)
        variables_b = {
            slot: variable
            for other in self.settings[1]["tables"]
            if other["name"] == table["name"]
            for variable, slot in other["slots"].items()
        }
        for variable, slot in table["slots"].items():
            a, b = values_a.get(variable), values_b.get(variables_b.get(slot, ""))
            if a is not None and b is not None and a.shape == b.shape:
                yield slot, self.before_of(variable), a, b


def close(one: Array, other: Array, relative: float = 1e-6) -> bool:
    """Returns whether arrays are equal but for a few roundings of their largest elements."""
    if one.shape != other.shape:
        return False
    largest = float(np.max(np.abs(one), initial=0.0))
    return bool(np.max(np.abs(one - other), initial=0.0) <= relative * largest)
