"""The invariants of a watched job, and their violations."""

from __future__ import annotations

from typing import NamedTuple

FINITE, STEP, IDS, LOOKUP = "finite", "global step", "ids", "lookup"
ROWS, MONOTONE, SIGN, LIMITS = "rows of the batch", "monotone slot", "sign of slot", "limits"
UPDATE, RATE = "update", "learning rate"
INVARIANTS = {
    FINITE: "no variable, activation, gradient or loss is NaN or infinite",
    STEP: "the global step counts every step once",
    IDS: "ids are rows of their table, one weight each, inside of the batch's shape",
    LOOKUP: "activations are what the table's rows before the step make of the ids and weights",
    ROWS: "only rows of the batch move, unless the rule says otherwise",
    MONOTONE: "slots that add up squares never become smaller",
    SIGN: "slots of squares are never negative",
    LIMITS: "rows that move stay inside of the limits of weights",
    UPDATE: "rows and slots are what the rule makes of the recorded gradients",
    RATE: "rows move as far as the rate of the step has them",
}
"""The invariants by name, in words."""


class Violation(NamedTuple):
    """One invariant that does not hold.

    Attributes:
        step: the global step after which it was seen.
        invariant: one of `INVARIANTS`.
        where: the table, slot, feature or variable.
        text: what was seen, with row, element and values.
    """

    step: int
    invariant: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.where}: {self.text} ({self.invariant})"
