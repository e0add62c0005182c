"""Reads and writes files of arrays of any type: numbers, byte strings, bfloat16, lists of arrays.

Types that `.npz` files lack are stored as bytes with a description; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from estimator_bridge import errors
from tf2_engine.types import Array, Object

Values = dict[str, Array]

# These prefixes avoid conflicts with the arguments of `np.savez`.
_KEY, _DESCRIPTION = "=", "?"
_STRINGS, _LIST = "strings", "list"
_BYTE_ORDERS = "<>|="
"""The first characters of type names that NumPy itself defines. Other types come from ml_dtypes."""


def read_arrays(path: pathlib.Path) -> Values:
    with np.load(path) as stored:
        return {
            key.removeprefix(_KEY): _read(stored, key)
            for key in stored.files
            if not key.startswith(_DESCRIPTION)
        }


def write_arrays(path: pathlib.Path, arrays: Mapping[str, Object]) -> None:
    stored: dict[str, Array] = {}
    for name, value in arrays.items():
        array = as_array(value)
        if _is_plain(array):
            stored[_KEY + name] = array
            continue
        description, data = _encoded(array)
        stored[_KEY + name] = np.frombuffer(data, np.uint8)
        stored[_DESCRIPTION + name] = np.frombuffer(json.dumps(description).encode(), np.uint8)
    # Until the new file is complete, other processes do not see it.
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.savez(file, **stored)
    partial.replace(path)


def compress(path: pathlib.Path, target: pathlib.Path) -> None:
    # Compression levels above 1 hardly make files of floats smaller, and take twice as long.
    compressed = zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with zipfile.ZipFile(path) as stored, compressed as new:
        for name in stored.namelist():
            new.writestr(name, stored.read(name))


def as_array(value: Object) -> Array:
    """Converts a value to an array; `bytes` keep trailing NULs, which NumPy would drop.

    A list of arrays of different shapes becomes an object array, [length]. Objects that are
    neither numbers nor text nor lists become text.
    """
    if isinstance(value, (bytes, str)):
        return _objects([value]).reshape(())
    if isinstance(value, (list, tuple)):
        return stacked([as_array(one) for one in value])
    array: Array = np.asarray(value)
    if array.dtype.kind == "S":
        return array.astype(object)
    if array.dtype == object and not is_list(array):
        texts = [one if isinstance(one, (bytes, str)) else str(one) for one in array.ravel()]
        return _objects(texts).reshape(array.shape)
    return array


def stacked(arrays: Sequence[Array]) -> Array:
    if not arrays:
        return np.zeros([0])
    if len({(array.dtype, array.shape) for array in arrays}) == 1:
        return np.stack(arrays)
    return _objects(arrays)


def listed(batches: Sequence[Values]) -> Values:
    names = dict.fromkeys(name for batch in batches for name in batch)
    return {name: stacked([one[name] for one in batches if name in one]) for name in names}


def unlisted(values: Mapping[str, Array]) -> list[Values]:
    count = max((len(array) for array in values.values()), default=0)
    return [
        {name: np.asarray(array[i]) for name, array in values.items() if i < len(array)}
        for i in range(count)
    ]


def is_list(array: Array) -> bool:
    is_object = array.dtype == object and array.ndim == 1 and array.size
    return bool(is_object) and isinstance(array[0], np.ndarray)


def _objects(values: Sequence[Object]) -> Array:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def _is_plain(array: Array) -> bool:
    return array.dtype.kind in "biufcUmM" and array.dtype.type.__module__ == "numpy"


def _read(stored: Mapping[str, Array], key: str) -> Array:
    description = _DESCRIPTION + key.removeprefix(_KEY)
    if description not in stored:
        return stored[key]
    return _decoded(json.loads(stored[description].tobytes()), stored[key].tobytes())


def _encoded(array: Array) -> tuple[dict[str, Object], bytes]:
    shape = list(array.shape)
    if is_list(array):
        parts = [_encoded(part) for part in array]
        items = [{**description, "bytes": len(data)} for description, data in parts]
        return {"type": _LIST, "items": items}, b"".join(data for _, data in parts)
    if array.dtype == object:
        return {"type": _STRINGS, "shape": shape}, _encoded_strings(array.ravel().tolist())
    named = array.dtype.str if _is_plain(array) else array.dtype.name
    return {"type": named, "shape": shape}, array.tobytes()


def _decoded(description: Mapping[str, Object], data: bytes) -> Array:
    if description["type"] == _LIST:
        parts, start = [], 0
        for item in description["items"]:
            parts.append(_decoded(item, data[start : start + item["bytes"]]))
            start += item["bytes"]
        return _objects(parts)
    shape = description["shape"]
    if description["type"] == _STRINGS:
        return _objects(_decoded_strings(data, math.prod(shape))).reshape(shape)
    return np.frombuffer(data, _dtype(description["type"])).reshape(shape).copy()


def _dtype(name: str) -> np.dtype[Object]:
    if name[0] in _BYTE_ORDERS:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise errors.InvalidInput(
            f"An array of the recording has the type {name}, which NumPy lacks. To read it, "
            "run: pip install ml_dtypes"
        ) from error
    return np.dtype(getattr(ml_dtypes, name))


def _encoded_strings(values: Sequence[Object]) -> bytes:
    numbers, parts = [], []
    for value in values:
        is_text = not isinstance(value, bytes)
        part = str(value).encode("utf-8", "surrogatepass") if is_text else value
        numbers.append(2 * len(part) + is_text)
        parts.append(part)
    return np.array(numbers, np.int64).tobytes() + b"".join(parts)


def _decoded_strings(data: bytes, count: int) -> list[bytes | str]:
    numbers = np.frombuffer(data, np.int64, count)
    values: list[bytes | str] = []
    start = numbers.nbytes
    for number in numbers.tolist():
        part = data[start : start + number // 2]
        values.append(part.decode("utf-8", "surrogatepass") if number % 2 else part)
        start += number // 2
    return values


def digest(values: Mapping[str, Object]) -> str:
    result = hashlib.sha256()
    for name in sorted(values):
        description, data = _encoded(as_array(values[name]))
        result.update(f"{name} {json.dumps(description)} ".encode("utf-8", "surrogatepass"))
        result.update(data)
    return result.hexdigest()
