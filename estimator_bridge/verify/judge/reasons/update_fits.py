"""Finds the update rule of a side: the one that fits its rows, with one thing changed.

One side follows the rule of the table, the other does not. Each guess is the rule with another
setting, or with other gradients; that which makes the rows and slots of the other side, within the
bounds of their rounding, is what it does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.verify.judge.arithmetic.rounded import SMALLEST_NORMAL
from estimator_bridge.verify.judge.arithmetic.shadow import ShadowInputs, ShadowRows, TableShadow
from estimator_bridge.verify.record.recording import RuleDescription, TableDescription, Values
from tf2_engine.types import Array

_MARGIN = 4.0
"""The multiple of the error bounds within which a guess fits."""
_FITS = 0.98
"""The share of elements that must fit: a limit may cut some off, a relu switch others."""
_ITERATIONS = 12
_STARTS = (0.1, 10.0)
"""The factors from which the right one is looked for, besides 1."""
_STEP = 1e-3
"""The relative change of a setting by which its effect is measured."""
RATE, GRADIENT = "rate", "gradient"
"""Numbers that are fitted besides the settings of a rule: factors on the rate and the gradients."""


class Guess(NamedTuple):
    """One thing that a side may do otherwise.

    Attributes:
        name: of the cause.
        text: what the side does, after "side B".
        table: with the changed rule.
        steps: the changed inputs.
    """

    name: str
    text: str
    table: TableDescription
    steps: Sequence[ShadowInputs]


@dataclasses.dataclass(frozen=True)
class Update:
    """An update of one table on a side that does not follow its rule.

    Attributes:
        table: with a rule.
        before: the variables before it, by the table's names.
        after: those of the side after it.
        steps: from which the rows are updated.
        goes_on: whether there is time for another guess.
    """

    table: TableDescription
    before: Values
    after: Values
    steps: Sequence[ShadowInputs]
    goes_on: Callable[[], bool] = lambda: True

    @property
    def rule(self) -> RuleDescription:
        """The rule of the table."""
        return known_rule(self.table)

    @property
    def names(self) -> list[str]:
        """The variables: that of the rows, then the slots."""
        return [self.table["variable"], *self.table["slots"]]

    def expected(self, guess: Guess | None = None) -> ShadowRows:
        """Returns the rows after an update by a guess; None is the rule itself."""
        table, steps = (self.table, self.steps) if guess is None else (guess.table, guess.steps)
        with np.errstate(all="ignore"):
            return TableShadow(table).advance(self.before, steps)

    def beyond(self, expected: ShadowRows, name: str) -> Array:
        """Returns which elements of a variable, [rows, dim], are not as expected."""
        part = expected.parts[name]
        off = np.abs(self.after[name][expected.rows] - part.value)
        return ~(off <= _MARGIN * part.error + SMALLEST_NORMAL)

    def wrong_rows(self) -> Array:
        """Returns the rows of the batch that differ from the result of the rule."""
        expected = self.expected()
        wrong = np.zeros(len(expected.rows), bool)
        for name in self.names:
            wrong |= self.beyond(expected, name).any(1)
        return expected.rows[wrong]

    def fits(self, guess: Guess, rows: Array) -> bool:
        """Returns whether a guess makes some rows of all variables."""
        expected = self.expected(guess)
        places = np.flatnonzero(np.isin(expected.rows, rows))
        # A guess without a row leaves it as it is.
        left = rows[~np.isin(rows, expected.rows)]
        stays = all(np.array_equal(self.after[n][left], self.before[n][left]) for n in self.names)
        return stays and all(
            1 - np.mean(self.beyond(expected, name)[places]) >= _FITS if len(places) else True
            for name in self.names
        )


def known_rule(table: TableDescription) -> RuleDescription:
    """Returns the rule of a table that has one."""
    assert table["rule"] is not None
    return table["rule"]


def with_settings(table: TableDescription, **settings: float | bool | None) -> TableDescription:
    """Returns a table with other settings of its rule."""
    rule = known_rule(table)
    return {**table, "rule": {**rule, "settings": {**rule["settings"], **settings}}}


def with_rates(table: TableDescription, factor: float) -> TableDescription:
    """Returns a table with other rates."""
    rule = known_rule(table)
    return {**table, "rule": {**rule, "rates": [rate * factor for rate in rule["rates"]]}}


def with_gradients(
    steps: Sequence[ShadowInputs], change: Callable[[Array], Array]
) -> list[ShadowInputs]:
    """Returns steps with other gradients."""
    return [
        step._replace(gradients={key: change(each) for key, each in step.gradients.items()})
        for step in steps
    ]


def fitted(update: Update, rows: Array, setting: str) -> float | None:
    """Returns the number that one of a rule's has to be to explain the rows; None if none does.

    Args:
        rows: of which it is to be found.
        setting: a float of the rule, `RATE` or `GRADIENT`.
    """
    if setting not in (RATE, GRADIENT):
        right = float(update.rule["settings"][setting] or 0.0)
        return _fit(update, rows, setting, right, right, update.names)
    # A rule may hide a factor in some of its variables: Adagrad moves rows by the rate, however
    # large a gradient is, and only the slots tell its scale. So each may also say it alone.
    attempts = [(1.0, update.names), *((1.0, [name]) for name in reversed(update.names))]
    attempts += [(start, update.names) for start in _STARTS]
    values = (_fit(update, rows, setting, 1.0, start, names) for start, names in attempts)
    return next((value for value in values if value is not None), None)


def _fit(
    update: Update, rows: Array, setting: str, right: float, start: float, names: Sequence[str]
) -> float | None:
    """Returns the number other than the right one that some variables show, if it fits all."""
    value = _solved(update, rows, setting, start, names)
    if value is None or abs(value - right) <= 1e-6 * abs(right):
        return None
    return value if update.fits(_guess_of(update, setting, value), rows) else None


def _solved(
    update: Update, rows: Array, setting: str, value: float, names: Sequence[str]
) -> float | None:
    """Returns the number at which Newton's method ends; None if the variables do not show it."""
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
    """Returns how far a number is off: the median of elements, by how clearly each shows it."""
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
        # An element counts that shows the number to a hundredth at least.
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
