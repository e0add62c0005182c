"""How far two float32 engines may be apart: the rounding model of docs/numerics.md.

Every operation rounds once, by at most 2**-24 of its result, and errors add (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, chapters 2 to 4). The model covers tables, their sums and
updates. What a network makes of a rounding error is the network's own: where the model does not
suffice it is measured, by training once more from a start that is off by its last bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from estimator_bridge.verify.recording import Array, Values

UNIT_ROUNDOFF = 2.0**-24
SMALLEST_NORMAL = 2.0**-126

PER_TERM, PER_SUM = 2, 4
"""Roundings of each term of a weighted sum, and of a sum whatever its length."""
PER_UPDATE = 23
"""Roundings of the longest update rule, FTRL, with weight decay."""
MEASURED = 8.0
"""The share of what was measured: one nudged start is one sample of what rounding can do."""
MOST_MEASURED = 0.01
"""The most that a nudge may move of a loss or an activation, relative to the largest magnitude.

Eight times that is a tenth of the numbers, within which faults would pass for rounding.
"""


def allowed(num_terms: int, steps: int, scale: float) -> float:
    """Returns the allowed absolute difference of an element.

    Both sides round, hence the two.

    Args:
        num_terms: the most terms in one sum: ids of a sample, or occurrences of a row in a batch.
        steps: updates that the element has been through.
        scale: the magnitude that errors are relative to.
    """
    per_sum = PER_TERM * num_terms + PER_SUM
    roundings = per_sum + steps * (2 * per_sum + PER_UPDATE)
    return 2 * roundings * UNIT_ROUNDOFF * scale + SMALLEST_NORMAL


def terms(batch: Values, features: Mapping[str, str | None]) -> int:
    """Returns the most terms that a batch sums into one element, at least one.

    Args:
        features: keys of features with a table, and the keys of their weights.
    """
    most = 1
    for key in features:
        samples = batch.get(f"features/{key}.indices")
        ids = batch.get(f"features/{key}.values", batch.get(f"features/{key}"))
        if ids is None or ids.size == 0 or ids.dtype.kind not in "iu":
            continue
        most = max(most, int(np.unique(ids, return_counts=True)[1].max()))
        if samples is not None:
            most = max(most, int(np.unique(samples[:, 0], return_counts=True)[1].max()))
        elif ids.ndim > 1:
            most = max(most, ids.shape[1])
    return most


def magnitude(*arrays: Array) -> float:
    """Returns the largest finite magnitude in some arrays."""
    return max(
        (
            float(np.max(np.abs(array), where=np.isfinite(array), initial=0.0))
            for array in arrays
            if array.dtype.kind == "f"
        ),
        default=0.0,
    )
