"""Measures how far two arrays are apart, and where."""

from __future__ import annotations

import numpy as np

from estimator_bridge.verify.findings import Divergence, Point
from estimator_bridge.verify.judge import tolerance
from tf2_engine.types import Array, Object


def measure(step: int, a: Array, b: Array, bound: float) -> tuple[Point, tuple[int, ...]]:
    """Returns the difference of two arrays of one shape, and the index where it is largest.

    Two NaNs are equal; a NaN and a number are infinitely far apart.

    Args:
        bound: the tolerance of floats; other numbers and strings must be equal.
    """
    if a.dtype.kind not in "fiub":
        difference = 0.0 if np.array_equal(a, b) else np.inf
        return Point(step, difference, 0.0, 0, 0.0), (0,) * a.ndim
    if not a.size:
        return Point(step, 0.0, 0.0, 0, bound), ()
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(np.subtract(a, b, dtype=np.float64))
    differences = np.where((a == b) | ((a != a) & (b != b)), 0.0, differences)
    differences = np.where(np.isnan(differences), np.inf, differences)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(differences), a.shape))
    scale = tolerance.magnitude(a, b)
    largest = float(differences[index])
    relative = largest / scale if scale else 0.0
    allowed = bound if a.dtype.kind == "f" else 0.0
    return Point(step, largest, relative, _ulps(a[index], b[index]), allowed), index


def divergence(a: Array, b: Array, point: Point, index: tuple[int, ...]) -> Divergence:
    """Returns where two arrays of one shape differ by more than the tolerance."""
    differs = np.abs(np.subtract(a, b, dtype=np.float64)) > point.allowed
    rows = int(np.count_nonzero(differs.reshape(len(differs), -1).any(1))) if differs.ndim else 1
    return Divergence(
        point.step,
        index[0] if index else None,
        list(index[1:]) or None,
        f"{a[index]:.9g}",
        f"{b[index]:.9g}",
        rows,
    )


def _ulps(one: Object, other: Object) -> int:
    """Returns how many float32 numbers two of them are apart; 0 for what is not finite."""
    if not isinstance(one, np.float32) or not np.isfinite([one, other]).all():
        return 0

    def ordered(number: np.float32) -> int:
        bits = int(number.view(np.int32))
        # Negative floats count downwards from zero.
        return bits if bits >= 0 else -(bits & 0x7FFFFFFF)

    return abs(ordered(one) - ordered(np.float32(other)))
