"""Finds the update rule that a side follows: the table's rule with one thing changed.

One side follows the rule of the table, the other does not. Each guess changes one setting or the
gradients. The guess that reproduces the other side's rows and slots, within the bounds of their
rounding, describes what that side does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.verify.compare.arithmetic.rounded import SMALLEST_NORMAL
from estimator_bridge.verify.compare.arithmetic.shadow import ShadowInputs, ShadowRows, TableShadow
from estimator_bridge.verify.record.recording import RuleDescription, TableDescription, Values
from tf2_engine.types import Array

_MARGIN = 4.0
"""A guess fits within this multiple of the error bounds."""
_FITS = 0.98
"""The share of elements that must fit: limits and relus may affect some."""
_ITERATIONS = 12
_STARTS = (0.1, 10.0)
"""Factors from which the search for the right one starts, besides 1."""
_STEP = 1e-3
"""The relative change of a setting by which its effect is measured."""
RATE, GRADIENT = "rate", "gradient"
"""Factors that can be fitted besides the settings of a rule."""


class Guess(NamedTuple):
    """One thing that a side may do differently.

    Attributes:
        name: the name of the cause.
        text: what the side does, as a continuation of "side B".
        table: with the changed rule.
        steps: the changed inputs.
    """

    name: str
    text: str
    table: TableDescription
    steps: Sequence[ShadowInputs]


@dataclasses.dataclass(frozen=True)
class Update:
    """An update of one table on a side that does not follow the table's rule.

    Attributes:
        table: has a rule.
        before: the variables before the update, by the table's names.
        after: the side's variables after it.
        steps: the inputs of the update.
        goes_on: whether there is time for another guess.
    """

    table: TableDescription
    before: Values
    after: Values
    steps: Sequence[ShadowInputs]
    goes_on: Callable[[], bool] = lambda: True

    @property
    def rule(self) -> RuleDescription:
        return known_rule(self.table)

    @property
    def names(self) -> list[str]:
        """The variable of the rows, then those of the slots."""
        return [self.table["variable"], *self.table["slots"]]

    def expected(self, guess: Guess | None = None) -> ShadowRows:
        table, steps = (self.table, self.steps) if guess is None else (guess.table, guess.steps)
        with np.errstate(all="ignore"):
            return TableShadow(table).advance(self.before, steps)

    def beyond(self, expected: ShadowRows, name: str) -> Array:
        """Returns which elements of a variable, [rows, dim], are not as expected."""
        part = expected.parts[name]
        off = np.abs(self.after[name][expected.rows] - part.value)
        return ~(off <= _MARGIN * part.error + SMALLEST_NORMAL)

    def wrong_rows(self) -> Array:
        expected = self.expected()
        wrong = np.zeros(len(expected.rows), bool)
        for name in self.names:
            wrong |= self.beyond(expected, name).any(1)
        return expected.rows[wrong]

    def fits(self, guess: Guess, rows: Array) -> bool:
        expected = self.expected(guess)
        places = np.flatnonzero(np.isin(expected.rows, rows))
        # A row that the guess does not update has to stay as it was.
        left = rows[~np.isin(rows, expected.rows)]
        stays = all(np.array_equal(self.after[n][left], self.before[n][left]) for n in self.names)
        return stays and all(
            1 - np.mean(self.beyond(expected, name)[places]) >= _FITS if len(places) else True
            for name in self.names
        )


def known_rule(table: TableDescription) -> RuleDescription:
    assert table["rule"] is not None
    return table["rule"]


def with_settings(table: TableDescription, **settings: float | bool | None) -> TableDescription:
    rule = known_rule(table)
    return {**table, "rule": {**rule, "settings": {**rule["settings"], **settings}}}


def with_rates(table: TableDescription, factor: float) -> TableDescription:
    rule = known_rule(table)
    return {**table, "rule": {**rule, "rates": [rate * factor for rate in rule["rates"]]}}


def with_gradients(
    steps: Sequence[ShadowInputs], change: Callable[[Array], Array]
) -> list[ShadowInputs]:
    return [
        step._replace(gradients={key: change(each) for key, each in step.gradients.items()})
        for step in steps
    ]


def fitted(update: Update, rows: Array, setting: str) -> float | None:
    """Finds the value of one number of a rule that explains the rows, or None.

    Args:
        rows: the rows to explain.
        setting: a float setting of the rule, `RATE` or `GRADIENT`.
    """
    if setting not in (RATE, GRADIENT):
        right = float(update.rule["settings"][setting] or 0.0)
        return _fit(update, rows, setting, right, right, update.names)
    # A rule may hide a factor in some variables: Adagrad moves rows by the rate however large a
    # gradient is, so only the slots reveal its scale. Hence each variable is also tried alone.
    attempts = [(1.0, update.names), *((1.0, [name]) for name in reversed(update.names))]
    attempts += [(start, update.names) for start in _STARTS]
    values = (_fit(update, rows, setting, 1.0, start, names) for start, names in attempts)
    return next((value for value in values if value is not None), None)


def _fit(
    update: Update, rows: Array, setting: str, right: float, start: float, names: Sequence[str]
) -> float | None:
    value = _solved(update, rows, setting, start, names)
    if value is None or abs(value - right) <= 1e-6 * abs(right):
        return None
    return value if update.fits(_guess_of(update, setting, value), rows) else None


def _solved(
    update: Update, rows: Array, setting: str, value: float, names: Sequence[str]
) -> float | None:
    """Runs Newton's method; None if the variables do not reveal the number."""
    for _ in range(_ITERATIONS):
        change = _newton_step(update, rows, setting, value, names) if update.goes_on() else None
        if change is None:
            return None
        value += change
        if abs(change) <= 1e-7 * abs(value):
            break
    return value if np.isfinite(value) else None


def _newton_step(
    update: Update, rows: Array, setting: str, value: float, names: Sequence[str]
) -> float | None:
    """Returns a correction: the median over elements, weighted by how clearly each shows it."""
    size = _STEP * abs(value) or _STEP
    here = update.expected(_guess_of(update, setting, value))
    there = update.expected(_guess_of(update, setting, value + size))
    places = np.flatnonzero(np.isin(here.rows, rows))
    steps, weights = [], []
    for name in names:
        part, moved = here.parts[name], there.parts[name]
        slope = (moved.value - part.value)[places] / size
        off = update.after[name][here.rows[places]] - part.value[places]
        with np.errstate(divide="ignore", invalid="ignore"):
            step, weight = off / slope, np.abs(slope) / part.error[places]
        # Only elements that show the number to a hundredth count.
        counts = np.isfinite(step) & (weight * max(abs(value), _STEP) > 100)
        steps.append(step[counts])
        weights.append(weight[counts])
    every, weight = np.concatenate(steps), np.concatenate(weights)
    if len(every) < 2:
        return None
    order = np.argsort(every)
    below = np.cumsum(weight[order])
    return float(every[order][np.searchsorted(below, below[-1] / 2)])


def _guess_of(update: Update, setting: str, value: float) -> Guess:
    if setting == RATE:
        return Guess("", "", with_rates(update.table, value), update.steps)
    if setting == GRADIENT:
        return Guess("", "", update.table, with_gradients(update.steps, lambda g: g * value))
    return Guess("", "", with_settings(update.table, **{setting: value}), update.steps)
