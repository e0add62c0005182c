"""The arrays around the first divergence, and how causes look at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from estimator_bridge.verify.recording import VARIABLES, Array, Step, Values

if TYPE_CHECKING:
    from estimator_bridge.verify.result import Result

Pair = tuple[Step, Step]


class Evidence(NamedTuple):
    """Not part of a report.

    Attributes:
        states: both sides at the last two looks at the variables before, the latest first.
        after: both sides at the step.
        batch: what the step was trained on; None if that is not known.
    """

    states: tuple[Pair, ...]
    after: Pair
    batch: Values | None

    @property
    def before(self) -> Pair | None:
        """Both sides just before the step, if they were looked at then."""
        if self.states and self.states[0][0].number == self.after[0].number - 1:
            return self.states[0]
        return None


def close(one: Array, other: Array, relative: float = 1e-6) -> bool:
    """Whether two arrays are equal but for a few roundings of their largest elements."""
    if one.shape != other.shape:
        return False
    largest = float(np.max(np.abs(one), initial=0.0))
    return bool(np.max(np.abs(one - other), initial=0.0) <= relative * largest)


def tables(result: Result, evidence: Evidence) -> Iterator[tuple[Mapping[str, Any], Array, Array]]:
    """Yields every table with its rows on both sides after the step."""
    ours, theirs = (side.values.get(VARIABLES, {}) for side in evidence.after)
    others = {table["name"]: table["variable"] for table in result.settings[1]["tables"]}
    for table in result.settings[0]["tables"]:
        one, other = ours.get(table["variable"]), theirs.get(others.get(table["name"], ""))
        if one is not None and other is not None and one.shape == other.shape:
            yield table, one, other


def slots(
    result: Result, evidence: Evidence, table: Mapping[str, Any]
) -> Iterator[tuple[str, Array | None, Array, Array]]:
    """Yields the slots of one of side A's tables that both sides have.

    Each is its name, its values before the step if they are known, and those of both sides after.
    """
    ours, theirs = (side.values.get(VARIABLES, {}) for side in evidence.after)
    before = {} if evidence.before is None else evidence.before[0].values[VARIABLES]
    others = {
        slot: variable
        for other in result.settings[1]["tables"]
        if other["name"] == table["name"]
        for variable, slot in other["slots"].items()
    }
    for variable, slot in table["slots"].items():
        one, other = ours.get(variable), theirs.get(others.get(slot, ""))
        if one is not None and other is not None and one.shape == other.shape:
            yield slot, before.get(variable), one, other
