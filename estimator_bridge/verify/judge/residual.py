"""What remains of the difference of two arrays, and how much is allowed, element by element."""

from __future__ import annotations

import numpy as np

from estimator_bridge.verify.evidence import Residual
from estimator_bridge.verify.findings import Divergence, Point
from tf2_engine.types import Array


def apart(a: Array, b: Array) -> Array:
    """Returns b - a in float64; 0 for two NaNs, infinite for a NaN beside a number.

    What is no number is infinitely far from what is another.
    """
    if not {a.dtype.kind, b.dtype.kind} <= set("fiub"):
        return np.where(a == b, 0.0, np.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.subtract(b, a, dtype=np.float64)
    difference = np.where((a == b) | ((a != a) & (b != b)), 0.0, difference)
    return np.where(np.isnan(difference), np.inf, difference)


def point_of(step: int, residual: Residual) -> tuple[Point, Divergence | None]:
    """Returns the element that is nearest to its allowance or beyond, and where if it is beyond."""
    size = np.abs(residual.apart)
    if not size.size:
        return Point(step, 0.0, 0.0, 0, 0.0), None
    allowed = np.broadcast_to(residual.allowed, size.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(size > 0, size / allowed, 0.0)
    share = np.where(np.isnan(share), 0.0, share)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(share), size.shape))
    one, other = residual.a[index], residual.b[index]
    magnitude = max(abs(float(one)), abs(float(other))) if _is_finite(one, other) else 0.0
    difference = float(size[index])
    relative = difference / magnitude if magnitude else 0.0
    point = Point(step, difference, relative, ulps(one, other), float(allowed[index]))
    if point.equal:
        return point, None
    beyond = share > 1
    rows = int(np.count_nonzero(beyond.reshape(len(beyond), -1).any(1))) if beyond.ndim else 1
    row = index[0] if index else None
    if row is not None and residual.rows is not None:
        row = int(residual.rows[row])
    return point, Divergence(step, row, [*index[1:]] or None, _shown(one), _shown(other), rows)


def spacing(values: Array) -> Array:
    """Returns the distance to the next float of the type, float64."""
    with np.errstate(invalid="ignore"):
        return np.abs(np.spacing(values)).astype(np.float64)


def ulps(one: object, other: object) -> int:
    """Returns how many float32 numbers two of them are apart; 0 for what is not finite."""
    if not isinstance(one, np.float32) or not np.isfinite([one, other]).all():
        return 0
    bits = np.array([one, other], np.float32).view(np.int32).astype(np.int64)
    # Negative floats count downwards from zero.
    first, second = np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF)).tolist()
    return abs(first - second)


def _is_finite(*values: object) -> bool:
    return all(np.asarray(v).dtype.kind in "fiub" and np.isfinite(v) for v in values)


def _shown(value: object) -> str:
    return f"{value:.9g}" if np.asarray(value).dtype.kind == "f" else str(value)
