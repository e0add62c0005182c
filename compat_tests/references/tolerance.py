"""Says how far an honest float32 implementation may be from the float64 reference.

The model is the usual first-order one: every operation rounds once, by at most the unit
roundoff u = 2**-24 of its result, and errors add. See Higham, Accuracy and Stability of
Numerical Algorithms, 2002, chapters 2 to 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compat_tests.references.inputs import Occurrence
from compat_tests.references.lookup import combine

UNIT_ROUNDOFF = 2.0**-24
"""Largest relative error of one correctly rounded float32 operation."""

ROUNDINGS_PER_TERM = 2
"""Roundings each further term of a sum adds: one addition among the weights of the combiner's
denominator, one among the products."""

ROUNDINGS_PER_SUM = 4
"""Roundings of a sum whatever its length. One term goes through five: its weight squared, the
root, the reciprocal, weight times that, and the gain times the row or gradient. n terms take
n - 1 additions of either kind, so 2 * (n - 1) + 5, rounded up to 2 * n + 4."""

ROUNDINGS_PER_UPDATE = 23
"""Roundings of the longest update rule, FTRL, in which the accumulator takes 2 (square,
addition), the two powers 4 each, z 5 (difference of powers, times w, over lr, plus g, minus),
and w 5 (clip minus z, plus beta, over lr, plus l2, final division): 20. Weight decay adds 3:
the factor times the rate, times the weight, and the difference. Clips do not round."""

SMALLEST_NORMAL = 2.0**-126
"""Below this a float32 implementation may flush to zero."""


def allowed(n_terms: int, steps: int, scale: float) -> float:
    """Returns the allowed absolute difference of any one element.

    A sum of n terms, each a gain times a number, is off by at most

        s = (2 * n + 4) * u * scale          with scale the sum of the terms' magnitudes

    in whatever order it is added up. That is the whole error of a lookup in an exact table
    (`steps` = 0).

    One update starts from a gradient that is off by s. Rules square it, which doubles a
    relative error, and then round up to 23 times more, so a weight or slot gains at most

        (2 * (2 * n + 4) + 23) * u * scale   with scale the largest magnitude so far

    and keeps what it was off by before: a slot that forgets (momentum, moving averages) shrinks
    its error as it shrinks its content, and a weight adds its errors up. So `steps` updates
    allow `steps` times that: linear, not quadratic, because a slot's drift reaches the weight
    through an update that is itself only about scale / steps of the way travelled. The sum
    that reads the element is added once.

    The model holds where the rule is well-conditioned on the scale of the data. It does not
    cover, and tests should keep away from:

    * updates that jump: FrequencyEstimator at `delta == outlier_threshold * w`, Yogi's sign at
      `v == g**2` (its update is continuous there, but only just);
    * division by a rounding error: gradients that cancel to nearly nothing under a rule that
      normalises them (Adam, RMSProp or AdagradMomentum from slots of zero, with an epsilon
      far below the gradients);
    * weights that cancel to nearly nothing under "mean", and overflow or underflow;
    * a scale taken from the result when the terms were larger: pass `scale`.

    Roundings seldom conspire, and thirty steps are usually off by less than a hundredth of this.
    A test that wants the sharper bound of a single step starts the reference anew from what the
    implementation holds before each step, and passes `steps` = 1.

    Args:
        n_terms: the most terms summed into one element: ids of a cell for activations,
            occurrences of a row in one batch for weights and slots.
        steps: updates the element has been through. Without gradient accumulation each core's
            update counts.
        scale: the magnitude the errors are relative to, as above; the unit of the result.

    Returns:
        A bound in the unit of `scale`, never zero.
    """
    per_sum = ROUNDINGS_PER_TERM * n_terms + ROUNDINGS_PER_SUM
    per_update = 2 * per_sum + ROUNDINGS_PER_UPDATE
    return (per_sum + steps * per_update) * UNIT_ROUNDOFF * scale + SMALLEST_NORMAL


def lookup_scale(
    table: npt.ArrayLike, occurrences: Sequence[Occurrence], gains: Sequence[float]
) -> float:
    """Returns the largest sum of term magnitudes of any cell, the `scale` of its activations.

    Args:
        table: [num_rows, dim] floats.
        occurrences: what was looked up.
        gains: the gain of each, as `lookup.combine` returned them.
    """
    rows = np.asarray(table, dtype=np.float64)
    sums: dict[int, float] = {}
    for (cell, id_, _), gain in zip(occurrences, gains, strict=True):
        sums[cell] = sums.get(cell, 0.0) + abs(gain) * float(np.max(np.abs(rows[id_])))
    return max(sums.values(), default=0.0)


def assert_close(
    expected: npt.ArrayLike,
    actual: npt.ArrayLike,
    *,
    n_terms: int,
    steps: int,
    where: str,
    scale: float | None = None,
) -> None:
    """Checks every element against the bound of `allowed`, and names the worst one.

    NaN equals NaN, and an infinity equals the same infinity.

    Args:
        expected: the float64 reference, of any shape.
        actual: the implementation's values, of the same shape.
        n_terms: see `allowed`.
        steps: see `allowed`.
        where: what is being compared, for the message: optimizer, driver, step, table.
        scale: see `allowed`; by default the largest finite magnitude in `expected`, which is
            right as long as nothing larger went into it (`ReferenceTable.scales` and
            `lookup_scale` know).

    Raises:
        AssertionError: naming `where`, the worst row and column, both values and the bound.
    """
    want = np.asarray(expected, dtype=np.float64)
    got = np.asarray(actual, dtype=np.float64)
    assert want.shape == got.shape, f"{where}: shape {got.shape} instead of {want.shape}."
    if not want.size:
        return
    if scale is None:
        scale = float(np.max(np.abs(want), where=np.isfinite(want), initial=0.0))
    bound = allowed(n_terms, steps, scale)

    with np.errstate(invalid="ignore"):
        difference = np.abs(got - want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    difference[same] = 0.0
    difference[np.isnan(difference)] = np.inf
    if np.max(difference) <= bound:
        return
    worst = np.unravel_index(np.argmax(difference), want.shape)
    raise AssertionError(
        f"{where}: {_place(worst)} is {got[worst]:.9g} instead of {want[worst]:.9g}, "
        f"off by {difference[worst]:.3g}; allowed {bound:.3g} "
        f"(n_terms={n_terms}, steps={steps}, scale={scale:.3g}). "
        f"{np.count_nonzero(difference > bound)} of {want.size} elements are off."
    )


def assert_lookup(
    rows: npt.ArrayLike,
    occurrences: Sequence[Occurrence],
    combiner: str,
    actual: npt.NDArray[np.float32],
    *,
    n_terms: int,
    where: str,
    steps: int = 0,
) -> list[float]:
    """Compares activations with those of the reference; returns the gain of each occurrence.

    Args:
        actual: [*output shape, dim]; every other argument is as for `combine` and `assert_close`.
    """
    cells = int(np.prod(actual.shape[:-1]))
    expected, gains = combine(rows, occurrences, cells, combiner)
    scale = lookup_scale(rows, occurrences, gains)
    actual = actual.reshape(expected.shape)
    assert_close(expected, actual, n_terms=n_terms, steps=steps, scale=scale, where=where)
    return gains


def _place(index: Sequence[np.intp]) -> str:
    """Spells out an index: row and column when there are two."""
    if len(index) == 2:
        return f"row {index[0]}, column {index[1]}"
    return f"element {tuple(int(i) for i in index)}"
