"""Judges each row of tables and slots by its own occurrences and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge.verify.compare import elements
from estimator_bridge.verify.compare.arithmetic.rounded import SMALLEST_NORMAL, UNIT_ROUNDOFF, known
from estimator_bridge.verify.compare.arithmetic.shadow import ShadowInputs, ShadowRows, TableShadow
from estimator_bridge.verify.compare.elements import apart
from estimator_bridge.verify.evidence import Residual
from estimator_bridge.verify.record.recording import TableDescription, Values
from tf2_engine.types import Array

_MARGIN = 2.0
"""The allowed multiple of both sides' error bounds, as the order of operations may differ."""
_DESCRIBED = 0.99
"""A shadow describes a side if this share of elements is within the bounds."""


class TableUpdates:
    """The updates of one table on both sides, from one state; `names_b` are side B's variables."""

    def __init__(self, table: TableDescription, names_b: Mapping[str, str]) -> None:
        self._names = [table["variable"], *table["slots"]]
        self._names_b = names_b
        self._shadow = TableShadow(table)
        # Errors of sums have no preferred direction; those of a rule may.
        self._rule_alone = TableShadow(table, exact_sums=True)
        self.variable, self.features = table["variable"], self._shadow.features

    def residuals(
        self,
        before: Values,
        after: tuple[Values, Values],
        steps: tuple[Sequence[ShadowInputs], Sequence[ShadowInputs]],
    ) -> Iterator[tuple[str, Residual]]:
        """Yields the residual of each variable, after removing the effect of different gradients.

        Args:
            before: the variables on both sides, by side A's names.
        """
        with np.errstate(all="ignore"):
            ours = self._shadow.advance(before, steps[0])
            same = all(same_arrays(a.gradients, b.gradients) for a, b in zip(*steps, strict=True))
            theirs = ours if same else self._shadow.advance(before, steps[1])
            alone = self._rule_alone.advance(before, steps[0])
        pairs = {name: (after[0][name], after[1][self._names_b[name]]) for name in self._names}
        described = any(
            _describes(shadow, {name: pair[side] for name, pair in pairs.items()})
            for side, shadow in enumerate((ours, theirs))
        )
        for name, (a, b) in pairs.items():
            shadows = ours, theirs, alone
            yield name, self._residual(name, before[name], a, b, shadows, described)

    def _residual(
        self,
        name: str,
        before: Array,
        a: Array,
        b: Array,
        shadows: tuple[ShadowRows, ShadowRows, ShadowRows],
        described: bool,
    ) -> Residual:
        rows, (one, other, alone) = shadows[0].rows, (shadow.parts[name] for shadow in shadows)
        # Rows that the rule leaves alone only matter where they differ.
        others = np.setdiff1d(np.flatnonzero(elements.unequal_rows(a, b)), rows)
        every = np.concatenate([rows, others])
        start, a, b = before[every], a[every], b[every]
        n = len(rows)
        difference, moved = apart(a, b), apart(start, a)
        if described:  # float32 may leave nothing of a movement
            moved[:n] = one.value - start[:n]
        expected = np.nan_to_num(other.value - one.value, nan=0.0, posinf=0.0, neginf=0.0)
        error = known(one.error + other.error)
        if described:
            difference[:n] -= expected
        else:
            error = error + np.abs(expected)
        allowed = np.zeros(difference.shape)
        allowed[:n] = _MARGIN * error + SMALLEST_NORMAL
        # Rows that do not occur have no bias: elements that neither side moves are equal.
        rounding = 2 * UNIT_ROUNDOFF * np.abs(alone.value)
        bias = np.full(difference.shape, np.inf)
        if described:
            bias[:n] = np.maximum(known(2 * alone.error - rounding), 0.0)
        return Residual(a, b, difference, allowed, moved, bias, every)


def _describes(shadow: ShadowRows, after: Values) -> bool:
    within, total = 0, 0
    for name, part in shadow.parts.items():
        off = np.abs(after[name][shadow.rows] - part.value)
        within += int(np.count_nonzero(~(off > _MARGIN * part.error + SMALLEST_NORMAL)))
        total += off.size
    return within >= _DESCRIBED * total


def same_arrays(a: Values, b: Values) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
