"""Reads checkpoint files in pieces: any rows of any tensor, in little memory.

TensorFlow's own reader loads a whole stored slice to return a few rows of it, and a slice may be
larger than memory.

Reference: tensor_bundle.proto and tensor_bundle.h of TensorFlow.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import index_file
from estimator_bridge.checkpoint_files.index_file import crc32c, mask
from estimator_bridge.checkpoint_files.stored_tensor import (
    Extents,
    StoredSlice,
    StoredTensor,
    slice_key,
)
from tf2_engine import tf_compat
from tf2_engine.types import Array, DType, Message

CHUNK = 16 << 20
"""The number of bytes that are read or written at a time."""

_MAX_GAP = 1 << 16  # rows closer than this are read together with the bytes between them


class Reader:
    """An open checkpoint; a context manager.

    Opening it reads the index alone. Every size in the index is compared with the files before
    anything is allocated for it. The data of any checkpoint's tensors can be read with one reader,
    since a stored slice names its file.

    Attributes:
        prefix: the path of the checkpoint without ".index".
        tensors: by name, its tensors.

    Raises:
        UnreadableCheckpoint: a file is missing, shorter than the index says, or not a checkpoint;
            the message names it.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._files: dict[str, BinaryIO] = {}
        self._sizes: dict[str, int] = {}
        self._index = f"{prefix}.index"
        entries = index_file.read(self._index)
        try:
            header = tf_compat.BundleHeader.FromString(entries.pop(b"", b""))
            parsed = {key: tf_compat.BundleEntry.FromString(data) for key, data in entries.items()}
        except Exception as error:  # DecodeError, whose module depends on the version of protobuf
            raise self._damaged_index("an entry cannot be decoded") from error
        if header.endianness != tf_compat.BundleHeader.LITTLE or not header.num_shards:
            raise self._damaged_index("it was written by a big-endian machine or has no header")
        self._num_shards = header.num_shards
        # Slices have entries of their own, whose keys begin with a zero byte.
        tensors = [
            self._tensor(key, entry, parsed)
            for key, entry in parsed.items()
            if not key.startswith(b"\0")
        ]
        self.tensors = {tensor.name: tensor for tensor in tensors}
        # No byte belongs to two tensors: a few bytes cannot pass for tables of any size.
        if sum(tensor.size for tensor in tensors) > sum(self._sizes.values()):
            raise self._damaged_index("its tensors are larger than its files together")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    @property
    def files(self) -> list[str]:
        """The paths of the index and of the data files that hold tensors."""
        return [self._index, *sorted(self._sizes)]

    def chunks(self, piece: StoredSlice) -> Iterator[bytes]:
        """Yields the bytes of a stored slice, in chunks."""
        for start in range(0, piece.size, CHUNK):
            yield self._read(piece.file, piece.offset + start, min(CHUNK, piece.size - start))

    def verify(self, tensor: StoredTensor) -> None:
        """Reads a tensor and raises UnreadableCheckpoint, with its name, if a checksum is wrong."""
        if tensor.dtype == tf.string:
            self.strings(tensor)
            return
        if not tensor.dtype.size:
            return  # Variants and the like: only TensorFlow knows the checksummed bytes.
        for piece in tensor.slices:
            crc = 0
            for data in self.chunks(piece):
                crc = crc32c(data, crc)
            _check(crc, piece, tensor)

    def rows(self, tensor: StoredTensor, rows: Array) -> Array:
        """Returns rows of a tensor whose slices are blocks of rows: [num_rows, ...].

        Args:
            rows: [num_rows] int64, distinct, in any order; rows that are close to each other in the
                file are read together.
        """
        out = np.empty([len(rows), *tensor.shape[1:]], tensor.dtype.as_numpy_dtype)
        if not out.size:
            return out
        order = np.argsort(rows, kind="stable")
        ordered = np.asarray(rows, np.int64)[order]
        for begin, end in _groups(tensor, ordered):
            first, last = int(ordered[begin]), int(ordered[end - 1])
            block = self._block(tensor, first, last + 1)
            count = end - begin
            places = order[begin:end]
            if count == last + 1 - first and np.array_equal(places, places[0] + np.arange(count)):
                out[places[0] : places[0] + count] = block
            else:
                out[places] = block[ordered[begin:end] - first]
        return out

    def value(self, name: str) -> Array:
        """Returns a small numeric tensor that is not sliced."""
        tensor = self.tensors[name]
        self.verify(tensor)
        data = b"".join(self.chunks(tensor.slices[0]))
        return np.frombuffer(data, tensor.dtype.as_numpy_dtype).reshape(tensor.shape)

    def strings(self, tensor: StoredTensor) -> list[bytes]:
        """Returns the elements of a tensor of strings, which is verified."""
        return [element for piece in tensor.slices for element in self._strings(piece, tensor)]

    def _strings(self, piece: StoredSlice, tensor: StoredTensor) -> Iterator[bytes]:
        data = b"".join(self.chunks(piece))
        lengths, position = [], 0
        try:
            for _ in range(_num_elements(piece.extents)):
                length, position = index_file.get_varint(data, position)
                lengths.append(length)
        except (IndexError, ValueError):
            raise _damaged_slice(piece, tensor) from None
        if position + 4 + sum(lengths) != len(data):
            raise _damaged_slice(piece, tensor)
        # The checksum covers the lengths as integers, not as varints.
        crc = crc32c(b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths))
        _check(crc32c(data[position:], crc), piece, tensor)
        ends = itertools.accumulate(lengths, initial=position + 4)
        for begin, end in itertools.pairwise(ends):
            yield data[begin:end]

    def _block(self, tensor: StoredTensor, begin: int, end: int) -> Array:
        """Returns the rows from `begin` up to `end`."""
        blocks = []
        for piece in tensor.slices:
            first, count = piece.extents[0]
            low, high = max(begin, first), min(end, first + count)
            if low < high:
                offset = piece.offset + (low - first) * tensor.row_size
                blocks.append(self._read(piece.file, offset, (high - low) * tensor.row_size))
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return np.frombuffer(data, tensor.dtype.as_numpy_dtype).reshape(-1, *tensor.shape[1:])

    def _read(self, path: str, offset: int, size: int) -> bytes:
        try:
            if path not in self._files:
                self._files[path] = open(path, "rb")  # noqa: SIM115 - closed with the reader
            self._files[path].seek(offset)
            data = self._files[path].read(size)
        except OSError as error:
            raise errors.UnreadableCheckpoint(f"{path}: {error.strerror}.") from error
        if len(data) != size:
            raise errors.UnreadableCheckpoint(f"{path}: it ends too early. Use another checkpoint.")
        return data

    def _tensor(self, key: bytes, entry: Message, entries: Mapping[bytes, Message]) -> StoredTensor:
        try:
            name = key.decode()
            dtype = tf.as_dtype(entry.dtype)
        except (TypeError, ValueError):
            raise self._damaged_index(f"the entry of {key!r} names no dtype") from None
        shape = tuple(int(dim.size) for dim in entry.shape.dim)
        if any(length < 0 for length in shape):
            raise self._damaged_index(f"{name!r} has the shape {shape}")
        if not entry.slices:
            whole = self._slice(name, dtype, tuple((0, length) for length in shape), entry)
            return StoredTensor(name, dtype, shape, (whole,), False)
        pieces = []
        for part in entry.slices:
            extents = tuple(
                (int(extent.start), int(extent.length) if extent.HasField("length") else length)
                for extent, length in zip(part.extent, shape, strict=False)
            )
            stored = entries.get(slice_key(name, part))
            inside = len(part.extent) == len(shape) and all(
                min(start, count) >= 0 and start + count <= length
                for (start, count), length in zip(extents, shape, strict=True)
            )
            if stored is None or not inside or tf.as_dtype(stored.dtype) != dtype:
                raise self._damaged_index(f"a slice of {name!r} is missing")
            pieces.append(self._slice(name, dtype, extents, stored))
        pieces.sort(key=lambda piece: piece.extents)
        return StoredTensor(name, dtype, shape, tuple(pieces), True)

    def _slice(self, name: str, dtype: DType, extents: Extents, entry: Message) -> StoredSlice:
        count, size = _num_elements(extents), int(entry.size)
        # A string takes at least the byte of its length, and all of them the four of a checksum.
        fits = size == count * dtype.size if dtype.size else size >= count
        if not fits or entry.offset < 0 or not 0 <= entry.shard_id < self._num_shards:
            raise self._damaged_index(
                f"{name!r} has {count} elements of {dtype.name} in {size} bytes"
            )
        path = f"{self.prefix}.data-{entry.shard_id:05d}-of-{self._num_shards:05d}"
        if entry.offset + size > self._size_of(path):
            raise errors.UnreadableCheckpoint(
                f"{path}: it has {self._sizes[path]} bytes, but {name!r} ends at byte "
                f"{entry.offset + size}. The file is cut off; use another checkpoint."
            )
        return StoredSlice(extents, path, int(entry.offset), size, int(entry.crc32c))

    def _size_of(self, path: str) -> int:
        if path not in self._sizes:
            try:
                self._sizes[path] = os.path.getsize(path)
            except OSError as error:
                raise errors.UnreadableCheckpoint(
                    f"{path}: {error.strerror}. Copy all files of the checkpoint, or use another."
                ) from error
        return self._sizes[path]

    def _damaged_index(self, reason: str) -> errors.UnreadableCheckpoint:
        return errors.UnreadableCheckpoint(
            f"{self._index}: {reason}. It is damaged; use another checkpoint."
        )


def _groups(tensor: StoredTensor, rows: Array) -> Iterator[tuple[int, int]]:
    """Yields the ranges of positions in the sorted `rows` that are read at once."""
    rows_per_chunk = max(1, CHUNK // max(1, tensor.row_size))
    far = np.diff(rows) * tensor.row_size > max(_MAX_GAP, tensor.row_size)
    cut = far | (np.diff((rows - rows[0]) // rows_per_chunk) > 0)
    yield from itertools.pairwise([0, *(np.flatnonzero(cut) + 1).tolist(), len(rows)])


def _num_elements(extents: Extents) -> int:
    return math.prod(length for _, length in extents)


def _check(crc: int, piece: StoredSlice, tensor: StoredTensor) -> None:
    if mask(crc) != piece.crc:
        raise _damaged_slice(piece, tensor)


def _damaged_slice(piece: StoredSlice, tensor: StoredTensor) -> errors.UnreadableCheckpoint:
    return errors.UnreadableCheckpoint(
        f"{piece.file}: {tensor.name!r} does not have its checksum; the file is damaged. Use "
        "another checkpoint."
    )
