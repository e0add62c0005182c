"""Judges each row of tables and slots by its own occurrences and gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge.recording.files import TableDescription, Values
from estimator_bridge.verification.compare import elements
from estimator_bridge.verification.compare.arithmetic.rounded import (
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    known,
)
from estimator_bridge.verification.compare.arithmetic.shadow import (
    ShadowInputs,
    ShadowRows,
    TableShadow,
)
from estimator_bridge.verification.compare.elements import apart
from estimator_bridge.verification.evidence import Residual
from tf2_engine.types import Array

_MARGIN = 2.0
"""The allowed multiple of both sides' error bounds, as the order of operations may differ."""
_DESCRIBED = 0.99
"""A shadow describes a side if this share of elements is within the bounds."""


def table_residuals(
    table: TableDescription,
    names_b: Mapping[str, str],
    before: Values,
    after: tuple[Values, Values],
    inputs: tuple[Sequence[ShadowInputs], Sequence[ShadowInputs]],
) -> Iterator[tuple[str, Residual]]:
    """Yields the residual of each variable, after removing the effect of different gradients.

    Yields nothing if the inputs of the updates do not fit the table.

    Args:
        table: side A's, with a rule.
        names_b: side B's name of each of its variables.
        before: the variables on both sides, by side A's names.
    """
    shadow = TableShadow(table)
    ours_in, theirs_in = ([_of_table(each, shadow.features) for each in side] for side in inputs)
    if not all(each.fits(before[table["variable"]]) for each in (*ours_in, *theirs_in)):
        return
    same = all(
        same_arrays(a.gradients, b.gradients) for a, b in zip(ours_in, theirs_in, strict=True)
    )
    with np.errstate(all="ignore"):
        ours = shadow.advance(before, ours_in)
        theirs = ours if same else shadow.advance(before, theirs_in)
        # Errors of sums have no preferred direction; those of a rule may.
        alone = TableShadow(table, exact_sums=True).advance(before, ours_in)
    names = [table["variable"], *table["slots"]]
    pairs = {name: (after[0][name], after[1][names_b[name]]) for name in names}
    described = any(
        _describes(shadow, {name: pair[side] for name, pair in pairs.items()})
        for side, shadow in enumerate((ours, theirs))
    )
    for name, (a, b) in pairs.items():
        yield name, _residual(name, before[name], a, b, (ours, theirs, alone), described)


def _residual(
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


def _of_table(step: ShadowInputs, features: Collection[str]) -> ShadowInputs:
    return ShadowInputs(
        step.position,
        {key: ids for key, ids in step.ids.items() if key in features},
        {key: gradient for key, gradient in step.gradients.items() if key in features},
    )
