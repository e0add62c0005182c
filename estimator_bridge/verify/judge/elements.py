"""Compares arrays element by element, by the rules of their types.

Integers, bools and strings are equal or not, whatever their size; floats and complex numbers are
some distance apart, counted in the floats of their own type. A NaN equals a NaN alone.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tf2_engine import plain_text
from tf2_engine.types import Array, Object

_MAX_SHOWN = 60
"""Characters of a string that a report shows."""


def is_float(dtype: np.dtype[Object]) -> bool:
    """Returns whether numbers of a type are rounded: floats, bfloat16 and the like, complex."""
    return dtype.kind in "fc" or (dtype.kind == "V" and _finfo(dtype) is not None)


def is_real(dtype: np.dtype[Object]) -> bool:
    """Returns whether values of a type are numbers that have an order."""
    return _is_number(dtype) and dtype.kind != "c"


def unit_roundoff(dtype: np.dtype[Object]) -> float:
    """Returns the largest relative error of rounding to a type; 0 for types that are exact."""
    if not is_float(dtype):
        return 0.0
    return float(_finfo(dtype).eps) / 2


def differences(a: Array, b: Array) -> Array:
    """Returns how far apart the elements of two arrays of one shape are, as float64.

    It is 0 for equal elements, never for others: of integers it is exact up to 2^53, and never 0
    above that. A NaN beside a number, and a string beside another, are infinitely far apart.
    """
    if not (_is_number(a.dtype) and _is_number(b.dtype)):
        return np.where(_unequal_objects(a, b), np.inf, 0.0)
    if is_float(a.dtype) or is_float(b.dtype):
        return _between_floats(wide(a), wide(b))
    return _between_integers(a, b)


def ulps(one: Object, other: Object) -> int:
    """Returns how many numbers of their type two floats are apart.

    Of complex numbers it is that of the part that is further apart. It is 0 for other types, and
    for what is not finite.
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
    """Returns the largest finite magnitude in some arrays; 0 for types that are exact."""
    sizes = (np.abs(wide(array)) for array in arrays if is_float(array.dtype))
    return max(
        (float(np.max(one, initial=0.0, where=np.isfinite(one))) for one in sizes), default=0
    )


def shown(value: Object) -> str:
    """Returns an element for a report: numbers so that different ones look different."""
    array = np.asarray(value)
    if array.ndim or type_name(array) == "string":
        text = np.array2string(array, threshold=8) if array.ndim else repr(array.item())
        return plain_text.plain(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")
    small = array.dtype in (np.float16, np.float32)
    if small or (array.dtype.kind == "V" and is_float(array.dtype)):
        return f"{float(value):.9g}"
    return str(array.item())


def unequal_rows(a: Array, b: Array) -> Array:
    """Returns which rows of two arrays of numbers differ, [rows] bool; two NaNs do not."""
    return ((a != b) & ~((a != a) & (b != b))).reshape(len(a), -1).any(1)


def count_rows(of_elements: Array) -> int:
    """Returns in how many rows something is true of an element; a number is one row."""
    rows = np.atleast_1d(of_elements)
    return int(np.count_nonzero(rows.reshape(len(rows), -1).any(1)))


def type_name(array: Array) -> str:
    """Returns the type of an array as TensorFlow calls it."""
    return "string" if array.dtype == object or array.dtype.kind in "SU" else array.dtype.name


def _finfo(dtype: np.dtype[Object]) -> Object:
    try:
        return ml_dtypes.finfo(dtype)
    except ValueError:  # It is of no type with a mantissa, as int4.
        return None


def _is_number(dtype: np.dtype[Object]) -> bool:
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.fields is None)


def wide(array: Array) -> Array:
    """Returns floats of any type as float64 or wider, complex numbers as complex128 or wider."""
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
        # Modulo 2^64 the difference of two signed numbers is right, too.
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
    """Returns the place of a float among those of its type; 0 has the place 0."""
    bits = int(number.reshape(1).view(f"u{number.dtype.itemsize}")[0])
    sign = 1 << (8 * number.dtype.itemsize - 1)
    return bits if bits < sign else sign - bits
