"""Computes the difference of two arrays and judges it by the tolerance of each element."""

from __future__ import annotations

import numpy as np

from estimator_bridge.verify.compare import elements
from estimator_bridge.verify.evidence import Residual
from estimator_bridge.verify.findings import Divergence, Point
from tf2_engine.types import Array


def apart(a: Array, b: Array) -> Array:
    """Computes b - a in float64; two NaNs give 0, NaN and a number infinity.

    Values that are not real numbers have the distances of `elements.differences`.
    """
    size = elements.differences(a, b)
    if not (elements.is_real(a.dtype) and elements.is_real(b.dtype)):
        return size
    return np.where(b < a, -size, size)


def point_of(step: int, residual: Residual) -> tuple[Point, Divergence | None]:
    """Finds the element that comes closest to its tolerance, or exceeds it by most."""
    size = np.abs(residual.apart)
    if not size.size:
        return Point(step, 0.0, 0.0, 0, 0.0), None
    allowed = np.broadcast_to(residual.allowed, size.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(size > 0, size / allowed, 0.0)
    share = np.where(np.isnan(share), 0.0, share)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(share), size.shape))
    one, other = residual.a[index], residual.b[index]
    magnitude = elements.magnitude(residual.a[index], residual.b[index])
    difference = float(size[index])
    relative = difference / magnitude if magnitude else 0.0
    point = Point(step, difference, relative, elements.ulps(one, other), float(allowed[index]))
    if point.equal:
        return point, None
    rows = elements.count_rows(share > 1)
    row = index[0] if index else None
    if row is not None and residual.rows is not None:
        row = int(residual.rows[row])
    return point, Divergence(
        step, row, [*index[1:]] or None, elements.shown(one), elements.shown(other), rows
    )


def spacing(values: Array) -> Array:
    """Returns the distance to the next float of the type, as float64."""
    with np.errstate(invalid="ignore"):
        return np.abs(np.spacing(values)).astype(np.float64)
