"""Stores rows in small types for serving: float16, bfloat16, and int8 with a scale per row.

For a row with elements x, low = min x, high = max x and A = max |x|, a lookup returns float32
elements that differ from x by at most

    float16     max(|x| 2^-11, 2^-25): half a unit in the last place (ULP)
    bfloat16    max(|x| 2^-8, 2^-126): half a ULP; TensorFlow may flush values below 2^-126 to zero
    int8        (high - low) / 510 + 6 A 2^-24 + 2^-117

An int8 row has the format of FBGEMM's fused 8-bit rowwise tables: `dim` codes from 0 to 255, then
scale and low as little-endian float32, together [dim + 8] uint8:

    scale = float32((high - low) / 255)    code = round((x - low) / scale)    x' = code scale + low

The code is computed in float64, the rest in float32. The term 6 A 2^-24 covers the rounding of the
scale and of the product (each at most (high - low) 2^-24 <= 2 A 2^-24), and of the sum. A scale
below 2^-126 is stored as 0, which causes an error of less than 255 2^-126, plus 2^-126 if low is
flushed to zero.

The error of an activation is at most the sum, over its rows, of the bound above times the row's
|gain| (see `batch`), plus the rounding of float32 sums.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import tensorflow as tf

from tf2_engine import errors
from tf2_engine.types import Array, DType, Object, Tensor

_STORED = {
    "float32": tf.float32,
    "float16": tf.float16,
    "bfloat16": tf.bfloat16,
    "int8": tf.uint8,
}
TABLE_DTYPES = tuple(_STORED)
"""The values of `table_dtype`."""

_BYTES_OF_ROW = 8  # bytes of scale and low
_SMALLEST = np.finfo(np.float32).tiny
_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}


def checked(table_dtype: Object, tables: Collection[str]) -> dict[str, str]:
    """Reads the type of each table from a user's `table_dtype`; returns a dict keyed by table name.

    `table_dtype` is one of `TABLE_DTYPES`, or a dict from table names to types. Tables that the
    dict does not name are float32.
    """
    if not isinstance(table_dtype, Mapping):
        return dict.fromkeys(tables, _checked("`table_dtype`", table_dtype))
    unknown = [name for name in table_dtype if name not in tables]
    if unknown:
        raise errors.InvalidSpec(
            f"`table_dtype` names the tables {unknown}, which do not exist; the tables are "
            f"{sorted(tables)}."
        )
    by_table = {
        name: _checked(f"`table_dtype` of table {name!r}", value)
        for name, value in table_dtype.items()
    }
    return {name: by_table.get(name, "float32") for name in tables}


def stored_dtype(table_dtype: str) -> DType:
    return _STORED[table_dtype]


def stored_width(dim: int, table_dtype: str) -> int:
    return dim + _BYTES_OF_ROW if table_dtype == "int8" else dim


def shape_of(variable: Object) -> tuple[int, ...]:
    shape = tuple(tf.TensorShape(variable.shape).as_list())
    if tf.as_dtype(variable.dtype) != tf.uint8 or len(shape) != 2:
        return shape
    return (shape[0], shape[1] - _BYTES_OF_ROW)


def encode(rows: Array, table_dtype: str, where: str, first_row: int = 0) -> Array:
    """Encodes rows, [n, dim] float32, as [n, stored_width].

    `where` and `first_row` are for the error message if a row is out of the type's range.
    """
    fits, stored = _encode_int8(rows) if table_dtype == "int8" else _cast(rows, table_dtype)
    if not fits.all():
        row = int(np.argmin(fits))
        raise errors.InvalidSpec(
            f"{where}: `table_dtype`={table_dtype!r} cannot hold row {first_row + row}, whose "
            f"numbers are from {rows[row].min()} to {rows[row].max()}: "
            f"{_limit(table_dtype)} Repair the row, or give this table another type: "
            "`table_dtype` may be a dict that maps names of tables to types."
        )
    return stored


def decode(stored: Tensor) -> Tensor:
    if stored.dtype == tf.uint8:
        codes = tf.cast(stored[..., :-_BYTES_OF_ROW], tf.float32)
        numbers = stored[..., -_BYTES_OF_ROW:]
        shape = tf.concat([tf.shape(numbers)[:-1], [2, _BYTES_OF_ROW // 2]], 0)
        scale_and_low = tf.bitcast(tf.reshape(numbers, shape), tf.float32)
        return codes * scale_and_low[..., :1] + scale_and_low[..., 1:]
    if stored.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(stored, tf.float32)
    return stored


def _checked(setting: str, value: Object) -> str:
    name = getattr(value, "name", value)  # a tf.DType has a name
    if not isinstance(name, str) or name not in TABLE_DTYPES:
        raise errors.InvalidSpec(
            f"{setting} must be one of {', '.join(TABLE_DTYPES)}, got {value!r}."
        )
    return name


def _cast(rows: Array, table_dtype: str) -> tuple[Array, Array]:
    if table_dtype == "float32":
        return np.ones(len(rows), bool), rows
    with np.errstate(all="ignore"):
        stored = rows.astype(_STORED[table_dtype].as_numpy_dtype)
    is_lost = np.isinf(stored.astype(np.float32)) & np.isfinite(rows)
    return ~is_lost.any(axis=1), stored


def _encode_int8(rows: Array) -> tuple[Array, Array]:
    low = rows.min(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        offsets = rows.astype(np.float64) - low
        scale = (offsets.max(axis=1, keepdims=True) / 255).astype(np.float32)
        # The largest code must not overflow: the range of a row can be twice the largest float32.
        fits = np.isfinite(scale * np.float32(255) + low)[:, 0]
        scale[~(scale >= _SMALLEST)] = 0
        codes = np.rint(offsets / np.where(scale > 0, scale, 1))
        codes = np.clip(np.nan_to_num(codes), 0, 255).astype(np.uint8)
    numbers = np.concatenate([scale, low], axis=1).astype("<f4")
    return fits, np.concatenate([codes, numbers.view(np.uint8)], axis=1)


def _limit(table_dtype: str) -> str:
    if table_dtype == "int8":
        return "int8 needs finite numbers, and a float32 must be able to hold their difference."
    return f"the largest number is {_LARGEST[table_dtype]:g}."
