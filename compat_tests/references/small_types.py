"""How far rows that are held in small types may be from what they were, in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from compat_tests.references.tolerance import SMALLEST_NORMAL, UNIT_ROUNDOFF

# Digits of the significand, the hidden one included, and the spacing of the numbers next to 0.
FORMATS = {"float16": (11, 2.0**-24), "bfloat16": (8, 2.0**-133)}


def bound(rows: npt.NDArray[np.float32], table_dtype: str) -> npt.NDArray[np.float64]:
    """Returns the largest error of each element of finite rows, [rows, dim].

    A floating-point type with p digits rounds to the nearest number, by half a unit in the last
    place: at most |x| 2^-p, or half the spacing next to 0. What is below 2^-126 may become 0.

    int8 has 256 evenly spaced numbers from the least element of a row to its largest, 1/255 of
    their distance apart, which an element is half of off. Float32 adds, relative to the largest
    magnitude A of the row: 2 u for the distance, which is up to 2 A; 2 u for the product of the
    scale and a code; u for the sum, and less than that for all second-order terms. A scale below
    2^-126 may count as 0, which is 255 of those off, and so may the least element and the sum.
    """
    exact = np.abs(rows.astype(np.float64))
    if table_dtype == "int8":
        distance = np.ptp(rows.astype(np.float64), axis=1, keepdims=True)
        largest = exact.max(axis=1, keepdims=True)
        of_row = distance / 510 + 6 * UNIT_ROUNDOFF * largest + 257 * SMALLEST_NORMAL
        return np.broadcast_to(of_row, rows.shape)
    digits, spacing = FORMATS[table_dtype]
    flushed = SMALLEST_NORMAL if spacing < SMALLEST_NORMAL else 0.0
    return np.maximum(exact * 2.0**-digits, max(spacing / 2, flushed))
