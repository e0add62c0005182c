"""Rounds what is looked up, as simulated quantization does.

Source: SimulatedQuantization in optimization_parameters.proto, whose comment spells the steps out.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def quantize(
    rows: npt.ArrayLike, num_buckets: int, lower: float, upper: float
) -> npt.NDArray[np.float64]:
    """Returns every number, held within the ends, as the nearest of the buckets.

        quantum = (upper - lower) / (num_buckets - 1)
        x <- floor((x - lower) / quantum + 0.5) * quantum + lower

    A number in the middle of two buckets goes to the upper one. This is done before the combiner;
    gradients are those of what was not rounded.

    Args:
        rows: [num_rows, dim] floats.
    """
    if num_buckets < 2:
        raise ValueError(f"{num_buckets} buckets are too few; there must be 2.")
    quantum = (upper - lower) / (num_buckets - 1)
    table = np.array(rows, dtype=np.float64)
    for place in np.ndindex(table.shape):
        clipped = min(max(float(table[place]), lower), upper)
        table[place] = math.floor((clipped - lower) / quantum + 0.5) * quantum + lower
    return table
