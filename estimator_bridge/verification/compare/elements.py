"""Compares arrays element by element, by the rules of their types.

Floats and complex numbers may differ by a tolerance; other values must be equal. NaN equals only
NaN.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from estimator_bridge.verification.findings import Divergence, Point, Residual
from tf2_engine import plain_text
from tf2_engine.types import Array, Object

_MAX_SHOWN = 60


def is_float(dtype: np.dtype[Object]) -> bool:
    return dtype.kind in "fc" or (dtype.kind == "V" and _finfo(dtype) is not None)


def is_real(dtype: np.dtype[Object]) -> bool:
    return _is_number(dtype) and dtype.kind != "c"


def unit_roundoff(dtype: np.dtype[Object]) -> float:
    if not is_float(dtype):
        return 0.0
    return float(_finfo(dtype).eps) / 2


def differences(a: Array, b: Array) -> Array:
    """Computes the distances between the elements of two arrays of equal shape, as float64.

    Different strings are infinitely far apart, and so are NaN and a number.
    """
    if not (_is_number(a.dtype) and _is_number(b.dtype)):
        return np.where(_unequal_objects(a, b), np.inf, 0.0)
    if a.dtype == b.dtype and np.array_equal(a, b):  # most arrays are equal, and this is faster
        return np.zeros(a.shape)
    if is_float(a.dtype) or is_float(b.dtype):
        return _between_floats(wide(a), wide(b))
    return _between_integers(a, b)


def ulps(one: Object, other: Object) -> int:
    """Returns the distance between two floats of one type, in units in the last place.

    For complex numbers, this is the larger distance of the two parts.
    """
    first, second = np.asarray(one), np.asarray(other)
    if first.dtype != second.dtype or not is_float(first.dtype):
        return 0
    if first.dtype.kind == "c":
        return max(ulps(first.real, second.real), ulps(first.imag, second.imag))
    if first.dtype.itemsize > 8 or not np.isfinite(wide(np.stack([first, second]))).all():
        return 0
    return abs(_rank(first) - _rank(second))


def magnitude(*arrays: Array) -> float:
    sizes = (np.abs(wide(array)) for array in arrays if is_float(array.dtype))
    return max(
        (float(np.max(one, initial=0.0, where=np.isfinite(one))) for one in sizes), default=0
    )


def shown(value: Object) -> str:
    array = np.asarray(value)
    if array.ndim or type_name(array) == "string":
        text = np.array2string(array, threshold=8) if array.ndim else repr(array.item())
        return plain_text.plain(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")
    small = array.dtype in (np.float16, np.float32)
    if small or (array.dtype.kind == "V" and is_float(array.dtype)):
        return f"{float(value):.9g}"
    return str(array.item())


def unequal_rows(a: Array, b: Array) -> Array:
    return ((a != b) & ~((a != a) & (b != b))).reshape(len(a), -1).any(1)


def count_rows(of_elements: Array) -> int:
    rows = np.atleast_1d(of_elements)
    return int(np.count_nonzero(rows.reshape(len(rows), -1).any(1)))


def type_name(array: Array) -> str:
    return "string" if array.dtype == object or array.dtype.kind in "SU" else array.dtype.name


def apart(a: Array, b: Array) -> Array:
    """Computes b - a in float64: 0 for two NaNs, and infinite for NaN and a number."""
    size = differences(a, b)
    if not (is_real(a.dtype) and is_real(b.dtype)):
        return size
    return np.where(b < a, -size, size)


def point_of(step: int, residual: Residual) -> tuple[Point, Divergence | None]:
    """Finds the element whose difference is the largest share of its tolerance."""
    size, is_uniform = np.abs(residual.apart), np.ndim(residual.allowed) == 0
    if not size.size:
        return Point(step, 0.0, 0.0, 0, float(np.max(residual.allowed, initial=0.0))), None
    allowed, worst = np.broadcast_to(residual.allowed, size.shape), size
    if not is_uniform:
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(size > 0, size / allowed, 0.0)
        worst = np.where(np.isnan(share), 0.0, share)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(worst), size.shape))
    one, other = residual.a[index], residual.b[index]
    scale = magnitude(residual.a, residual.b) if is_uniform else magnitude(one, other)
    difference = float(size[index])
    relative = difference / scale if scale else 0.0
    point = Point(step, difference, relative, ulps(one, other), float(allowed[index]))
    if point.equal:
        return point, None
    row = index[0] if index else None
    if row is not None and residual.rows is not None:
        row = int(residual.rows[row])
    rows = count_rows(size > allowed)
    return point, Divergence(step, row, [*index[1:]] or None, shown(one), shown(other), rows)


def spacing(values: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.abs(np.spacing(values)).astype(np.float64)


def _finfo(dtype: np.dtype[Object]) -> Object:
    try:
        return ml_dtypes.finfo(dtype)
    except ValueError:  # a type without a mantissa, such as int4
        return None


def _is_number(dtype: np.dtype[Object]) -> bool:
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.fields is None)


def wide(array: Array) -> Array:
    if array.dtype.kind in "fc" and array.dtype.itemsize >= 8 + 8 * (array.dtype.kind == "c"):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _between_floats(a: Array, b: Array) -> Array:
    if a.dtype.kind == "c" or b.dtype.kind == "c":
        a, b = np.asarray(a, np.result_type(a, 1j)), np.asarray(b, np.result_type(b, 1j))
        return np.hypot(_between_floats(a.real, b.real), _between_floats(a.imag, b.imag))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
    apart = np.where((a == b) | ((a != a) & (b != b)), 0.0, apart)
    return np.where(np.isnan(apart), np.inf, apart).astype(np.float64)


def _between_integers(a: Array, b: Array) -> Array:
    signed = [each.dtype.kind == "i" or each.dtype.kind == "V" for each in (a, b)]
    if signed[0] == signed[1]:
        whole = np.int64 if signed[0] else np.uint64
        a, b = a.astype(whole), b.astype(whole)
        # The difference of signed numbers is also right modulo 2^64.
        apart = np.where(
            a > b, a.view(np.uint64) - b.view(np.uint64), b.view(np.uint64) - a.view(np.uint64)
        )
        return apart.astype(np.float64)
    apart = np.abs(a.astype(object) - b.astype(object))
    return np.asarray(apart, np.float64).reshape(a.shape)


def _unequal_objects(a: Array, b: Array) -> Array:
    pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    unequal = [type(one) is not type(other) or one != other for one, other in pairs]
    return np.array(unequal, bool).reshape(a.shape)


def _rank(number: Array) -> int:
    bits = int(number.reshape(1).view(f"u{number.dtype.itemsize}")[0])
    sign = 1 << (8 * number.dtype.itemsize - 1)
    return bits if bits < sign else sign - bits
