"""Reads and writes safetensors files in pieces, because a table may be larger than memory.

Reference: the section "Format" of safetensors' README.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy.typing as npt

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import bundle_protos
from estimator_bridge.checkpoint_files.bundle import Reader, Writer, naming
from estimator_bridge.checkpoint_files.bundle_protos import ElementType
from estimator_bridge.checkpoint_files.stored_tensor import Extents, StoredSlice, StoredTensor
from tf2_engine.types import Object

TYPES = {
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
    "float32": "F32",
    "int32": "I32",
    "uint32": "U32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int16": "I16",
    "uint16": "U16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Maps TensorFlow's name of each type that a file can store to the name in the file."""

_BY_CODE = {TYPES[each.name]: each for each in bundle_protos.TYPES.values() if each.name in TYPES}
_MAX_HEADER = 100 << 20  # the safetensors library has the same limit
_METADATA = "__metadata__"


class Described(NamedTuple):
    """The type and shape of a tensor that will be written to a file."""

    dtype: ElementType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.size


class SafetensorsReader(Reader):
    """Reads several safetensors files like one checkpoint without checksums."""

    def __init__(self, prefix: str, paths: Sequence[str]) -> None:
        self.prefix = prefix
        self.metadata: dict[str, str] = {}
        self.tensors = {}
        self._files, self._paths = {}, list(paths)
        for path in paths:
            for tensor in self._tensors_of(path):
                if tensor.name in self.tensors:
                    raise _damaged(path, f"another file of {prefix} has {tensor.name!r}, too")
                self.tensors[tensor.name] = tensor

    @property
    def files(self) -> list[str]:
        return self._paths

    def verify(self, tensor: StoredTensor) -> None:
        """Does nothing, because the format has no checksums."""

    def _tensors_of(self, path: str) -> Iterator[StoredTensor]:
        try:
            size = os.path.getsize(path)
        except OSError as error:
            raise errors.UnreadableCheckpoint(f"{path}: {error.strerror}.") from error
        if size < 8:
            raise _damaged(path, f"it has {size} bytes")
        length = int.from_bytes(self._read(path, 0, 8), "little")
        if length > min(_MAX_HEADER, size - 8):
            raise _damaged(path, f"its header would have {length} bytes, but the file has {size}")
        try:
            header = dict(json.loads(self._read(path, 8, length)))
            self.metadata.update(header.pop(_METADATA, {}))
            tensors = [_tensor(path, 8 + length, name, each) for name, each in header.items()]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise _damaged(path, f"its header is wrong ({error!r})") from error
        # Files have no gaps, so a small file cannot claim to contain large tables.
        position = 8 + length
        for tensor in sorted(tensors, key=lambda each: each.slices[0].offset):
            piece = tensor.slices[0]
            if piece.offset != position or piece.size != Described(tensor.dtype, tensor.shape).size:
                raise _damaged(
                    path, f"{tensor.name!r} does not have {piece.size} bytes at byte {position}"
                )
            position += piece.size
        if position != size:
            raise _damaged(path, f"its tensors end at byte {position}, but the file at {size}")
        yield from tensors


class SafetensorsWriter(Writer):
    """Writes safetensors files; `files` maps each file's path to its tensors, keyed by name."""

    def __init__(
        self,
        files: Mapping[str, Mapping[str, Described]],
        metadata: Mapping[str, str],
        wrote: Callable[[int], None],
    ) -> None:
        self._wrote = wrote
        self._open = contextlib.ExitStack()
        self._places = {}
        for path, tensors in files.items():
            header, offsets = _header(tensors, metadata)
            with naming(path):
                file = self._open.enter_context(open(path, "wb"))  # noqa: SIM115 - entered
                file.write(header)
            for name, offset in offsets.items():
                self._places[name] = path, file, len(header) + offset

    def tensor(
        self,
        name: str,
        dtype: ElementType | npt.DTypeLike,
        shape: Sequence[int],
        sizes: Mapping[Extents, int],
        buffers: Iterable[tuple[int, bytes]],
        *,
        sliced: bool,
        crcs: Sequence[int] | None = None,
        runs: int = 1,
    ) -> None:
        path, file, offset = self._places[name]
        begins = list(itertools.accumulate(sizes.values(), initial=offset))
        positions = begins[:-1]
        for _ in self._written(path, file, positions, buffers):
            pass
        assert positions == begins[1:]

    def finish(self) -> None:
        for path, file, _ in self._places.values():
            with naming(path):
                file.flush()
                os.fsync(file.fileno())
        self._open.close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._open.close()


def _header(
    tensors: Mapping[str, Described], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    # Tensors with larger elements come first, so that every tensor is aligned in a mapped file.
    names = sorted(tensors, key=lambda name: -tensors[name].dtype.size)
    ends = list(itertools.accumulate(tensors[name].size for name in names))
    offsets = dict(zip(names, [0, *ends], strict=False))
    entries: dict[str, Object] = {_METADATA: {"format": "pt", **metadata}}
    for name, end in zip(names, ends, strict=True):
        dtype, shape = tensors[name]
        entries[name] = {
            "dtype": TYPES[dtype.name],
            "shape": list(shape),
            "data_offsets": [offsets[name], end],
        }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header, offsets


def _tensor(path: str, start: int, name: str, entry: Mapping[str, Object]) -> StoredTensor:
    shape = tuple(int(length) for length in entry["shape"])
    begin, end = (int(offset) for offset in entry["data_offsets"])
    if min((begin, end - begin, *shape)) < 0:
        raise ValueError(f"{name!r} has a negative length")
    extents = tuple((0, length) for length in shape)
    piece = StoredSlice(extents, path, start + begin, end - begin, None)
    return StoredTensor(name, _BY_CODE[entry["dtype"]], shape, (piece,), False)


def _damaged(path: str, reason: str) -> errors.UnreadableCheckpoint:
    return errors.UnreadableCheckpoint(
        f"{path}: {reason}, so the file is damaged, or it is not a safetensors file. Use another "
        "file."
    )
