"""Reads and writes the files of a checkpoint in pieces: any rows of any tensor, in little memory.

TensorFlow's own reader takes a whole stored slice into memory to give a few rows of it, and its
writer wants whole slices. Tables are larger than that allows, and how a table is cut into slices is
known to the index alone.

Reference: tensor_bundle.proto and tensor_bundle.h of TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.convert import sorted_table
from estimator_bridge.convert.crc32c import crc32c, mask
from tf2_engine import tf_compat

CHUNK = 16 << 20
"""Bytes that are read or written at a time."""

Extents = tuple[tuple[int, int], ...]
"""A slice: for every dimension where it starts and how long it is."""

_READ_OVER = 1 << 16  # rows this far apart are read with what is between them


@dataclasses.dataclass(frozen=True)
class Piece:
    """A stored slice of a tensor.

    Attributes:
        extents: which part of the tensor it is.
        file: the path of the file that holds it, from `offset` on.
        size: its bytes.
        crc: its checksum, as stored.
    """

    extents: Extents
    file: str
    offset: int
    size: int
    crc: int


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint.

    Attributes:
        pieces: its stored slices in their order; one, unless it is `sliced`.
        sliced: whether it is stored as slices.
    """

    name: str
    dtype: Any
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    sliced: bool

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(piece.size for piece in self.pieces)

    @property
    def row_size(self) -> int:
        """The bytes of a row, which is what an index of the first dimension names."""
        return math.prod(self.shape[1:]) * int(self.dtype.size)

    @property
    def part_rows(self) -> tuple[int, ...] | None:
        """The rows of each slice; None if slices are not blocks of rows that follow each other."""
        row = 0
        for piece in self.pieces:
            whole = all(
                extent == (0, length)
                for extent, length in zip(piece.extents[1:], self.shape[1:], strict=True)
            )
            if not self.shape or not whole or piece.extents[0][0] != row:
                return None
            row += piece.extents[0][1]
        return tuple(piece.extents[0][1] for piece in self.pieces) if row == self.shape[0] else None


class Reader:
    """An open checkpoint; a context.

    Opening reads the index alone. Every size in it is held against the files before anything is
    allocated for it.

    Args:
        prefix: the path of a checkpoint without ".index".

    Raises:
        UnreadableCheckpoint: a file is missing, shorter than it must be, or no checkpoint; the
            message names it.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._files: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._index = f"{prefix}.index"
        entries = sorted_table.read(self._index)
        try:
            header = tf_compat.BundleHeader.FromString(entries.pop(b"", b""))
            parsed = {key: tf_compat.BundleEntry.FromString(at) for key, at in entries.items()}
        except Exception as error:  # DecodeError, whose module depends on the version of protobuf
            raise self._damaged("an entry cannot be decoded") from error
        if header.endianness != tf_compat.BundleHeader.LITTLE or not header.num_shards:
            raise self._damaged("it was written by a big-endian machine or has no header")
        self._num_shards = header.num_shards
        # Slices have entries of their own, whose keys begin with a zero byte.
        self.tensors = {
            tensor.name: tensor
            for tensor in (
                self._tensor(key, entry, parsed)
                for key, entry in parsed.items()
                if not key.startswith(b"\0")
            )
        }
        # Each byte is of one tensor: a few of them cannot stand for tables of any size.
        if sum(tensor.size for tensor in self.tensors.values()) > sum(self._sizes.values()):
            raise self._damaged("its tensors are larger than its files together")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    @property
    def files(self) -> list[str]:
        """The paths of the index and of all files that hold something."""
        return [self._index, *sorted(self._sizes)]

    def raw(self, piece: Piece) -> Iterator[bytes]:
        """Yields the bytes of a stored slice, in chunks."""
        for start in range(0, piece.size, CHUNK):
            yield self._read(piece.file, piece.offset + start, min(CHUNK, piece.size - start))

    def verify(self, tensor: Tensor) -> None:
        """Reads a tensor and compares its checksums.

        Raises:
            UnreadableCheckpoint: one is wrong; the message names the file and the tensor.
        """
        if tensor.dtype == tf.string:
            self.strings(tensor)
            return
        if not tensor.dtype.size:
            return  # Variants and the like: only TensorFlow knows what is checked.
        for piece in tensor.pieces:
            crc = 0
            for data in self.raw(piece):
                crc = crc32c(data, crc)
            self._compare(crc, piece, tensor.name)

    def rows(self, tensor: Tensor, rows: Any) -> Any:
        """Returns rows of a tensor whose slices are blocks of rows: [num_rows, ...].

        Args:
            rows: [num_rows] int64, distinct, in any order; rows that are near each other in the
                file are read together.
        """
        out = np.empty([len(rows), *tensor.shape[1:]], tensor.dtype.as_numpy_dtype)
        if not out.size:
            return out
        order = np.argsort(rows, kind="stable")
        wanted = np.asarray(rows, np.int64)[order]
        for begin, end in self._groups(tensor, wanted):
            first, last = int(wanted[begin]), int(wanted[end - 1])
            block = self._block(tensor, first, last + 1)
            if end - begin == last + 1 - first and np.array_equal(
                order[begin:end], np.arange(order[begin], order[begin] + end - begin)
            ):
                out[order[begin] : order[begin] + end - begin] = block
            else:
                out[order[begin:end]] = block[wanted[begin:end] - first]
        return out

    def value(self, name: str) -> Any:
        """Returns a small numeric tensor that is not sliced."""
        tensor = self.tensors[name]
        self.verify(tensor)
        data = b"".join(self.raw(tensor.pieces[0]))
        return np.frombuffer(data, tensor.dtype.as_numpy_dtype).reshape(tensor.shape)

    def strings(self, tensor: Tensor) -> list[bytes]:
        """Returns the elements of a tensor of strings.

        Raises:
            UnreadableCheckpoint: it is damaged; the message names the file and the tensor.
        """
        found: list[bytes] = []
        for piece in tensor.pieces:
            data = b"".join(self.raw(piece))
            count = math.prod(length for _, length in piece.extents)
            try:
                lengths, at = [], 0
                for _ in range(count):
                    length, at = sorted_table.get_varint(data, at)
                    lengths.append(length)
            except (IndexError, ValueError):
                raise self._broken(piece, tensor.name) from None
            if at + 4 + sum(lengths) != len(data):
                raise self._broken(piece, tensor.name)
            # The checksum is of the lengths as they are in memory.
            crc = crc32c(b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths))
            self._compare(crc32c(data[at:], crc), piece, tensor.name)
            at += 4
            for length in lengths:
                found.append(data[at : at + length])
                at += length
        return found

    def _groups(self, tensor: Tensor, wanted: Any) -> Iterator[tuple[int, int]]:
        """Yields ranges of positions in the sorted `wanted` that are read at once."""
        most = max(1, CHUNK // max(1, tensor.row_size))
        apart = np.diff(wanted) * tensor.row_size > max(_READ_OVER, tensor.row_size)
        cut = apart | (np.diff((wanted - wanted[0]) // most) > 0)
        edges = [0, *(np.flatnonzero(cut) + 1).tolist(), len(wanted)]
        yield from itertools.pairwise(edges)

    def _block(self, tensor: Tensor, begin: int, end: int) -> Any:
        """Returns the rows from `begin` up to `end`."""
        blocks = []
        for piece in tensor.pieces:
            first, length = piece.extents[0]
            low, high = max(begin, first), min(end, first + length)
            if low < high:
                at = piece.offset + (low - first) * tensor.row_size
                blocks.append(self._read(piece.file, at, (high - low) * tensor.row_size))
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return np.frombuffer(data, tensor.dtype.as_numpy_dtype).reshape(-1, *tensor.shape[1:])

    def _read(self, path: str, offset: int, size: int) -> bytes:
        try:
            if path not in self._files:
                self._files[path] = open(path, "rb")  # noqa: SIM115 - closed with the reader
            file = self._files[path]
            file.seek(offset)
            data = bytes(file.read(size))
        except OSError as error:
            raise errors.UnreadableCheckpoint(f"{path}: {error.strerror}.") from error
        if len(data) != size:
            raise errors.UnreadableCheckpoint(f"{path}: it ends too early. Use another checkpoint.")
        return data

    def _tensor(self, key: bytes, entry: Any, parsed: dict[bytes, Any]) -> Tensor:
        try:
            name = key.decode()
            dtype = tf.as_dtype(entry.dtype)
        except (TypeError, ValueError):
            raise self._damaged(f"the entry of {key!r} names no dtype") from None
        shape = tuple(int(dim.size) for dim in entry.shape.dim)
        if any(length < 0 for length in shape):
            raise self._damaged(f"{name!r} has the shape {shape}")
        if not entry.slices:
            whole = tuple((0, length) for length in shape)
            return Tensor(name, dtype, shape, (self._piece(name, dtype, whole, entry),), False)
        pieces = []
        for part in entry.slices:
            extents = tuple(
                (int(extent.start), int(extent.length) if extent.HasField("length") else length)
                for extent, length in zip(part.extent, shape, strict=False)
            )
            stored = parsed.get(_slice_key(name, part))
            inside = len(part.extent) == len(shape) and all(
                min(start, count) >= 0 and start + count <= length
                for (start, count), length in zip(extents, shape, strict=True)
            )
            if stored is None or not inside or tf.as_dtype(stored.dtype) != dtype:
                raise self._damaged(f"a slice of {name!r} is missing")
            pieces.append(self._piece(name, dtype, extents, stored))
        return Tensor(name, dtype, shape, tuple(sorted(pieces, key=lambda p: p.extents)), True)

    def _piece(self, name: str, dtype: Any, extents: Extents, entry: Any) -> Piece:
        count = math.prod(length for _, length in extents)
        size = int(entry.size)
        # A string takes at least the byte of its length, and all of them the four of a checksum.
        fits = size == count * dtype.size if dtype.size else size >= count
        if not fits or entry.offset < 0 or not 0 <= entry.shard_id < self._num_shards:
            raise self._damaged(f"{name!r} has {count} elements of {dtype.name} in {size} bytes")
        path = self._file(entry.shard_id)
        if path not in self._sizes:
            try:
                self._sizes[path] = os.path.getsize(path)
            except OSError as error:
                raise errors.UnreadableCheckpoint(
                    f"{path}: {error.strerror}. Copy all files of the checkpoint, or use another."
                ) from error
        if entry.offset + size > self._sizes[path]:
            raise errors.UnreadableCheckpoint(
                f"{path}: it has {self._sizes[path]} bytes, but {name!r} ends at byte "
                f"{entry.offset + size}. The file is cut off; use another checkpoint."
            )
        return Piece(extents, path, int(entry.offset), size, int(entry.crc32c))

    def _file(self, shard: int) -> str:
        return f"{self.prefix}.data-{shard:05d}-of-{self._num_shards:05d}"

    def _compare(self, crc: int, piece: Piece, name: str) -> None:
        if mask(crc) != piece.crc:
            raise self._broken(piece, name)

    def _broken(self, piece: Piece, name: str) -> Exception:
        return errors.UnreadableCheckpoint(
            f"{piece.file}: {name!r} does not have its checksum; the file is damaged. Use another "
            "checkpoint."
        )

    def _damaged(self, what: str) -> Exception:
        return errors.UnreadableCheckpoint(
            f"{self._index}: {what}. It is damaged; use another checkpoint."
        )


class Writer:
    """Writes a checkpoint of one data file; the index, without which it is none, comes last.

    Raises:
        CannotWrite: a file cannot be written; the message names it.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._path = f"{prefix}.data-00000-of-00001"
        header = tf_compat.BundleHeader(num_shards=1)
        header.version.producer = 1
        self._entries = {b"": header.SerializeToString()}
        self._offset = 0
        with _naming(self._path):
            self._file = open(self._path, "wb")  # noqa: SIM115 - closed in `finish` and `abandon`

    def tensor(
        self,
        name: str,
        dtype: Any,
        shape: Sequence[int],
        sizes: Mapping[Extents, int],
        buffers: Iterable[tuple[int, Any]],
        *,
        sliced: bool,
        crcs: Sequence[int] | None = None,
    ) -> None:
        """Writes a tensor.

        Args:
            sizes: the bytes of each slice, by its extents.
            buffers: the data: the number of a slice, and what comes next in it.
            sliced: False takes one slice, which is the whole.
            crcs: checksums of the slices; None computes them.
        """
        begins = list(itertools.accumulate(sizes.values(), initial=self._offset))
        at, found = begins[:-1], [0] * len(sizes)
        for number, buffer in buffers:
            self._write(at[number], buffer)
            at[number] += len(buffer)
            if crcs is None:
                found[number] = crc32c(buffer, found[number])
        assert at == begins[1:]
        self._offset = begins[-1]
        masked = [mask(crc) for crc in found] if crcs is None else crcs
        entry = tf_compat.BundleEntry(dtype=tf.as_dtype(dtype).as_datatype_enum)
        entry.shape.CopyFrom(tf.TensorShape(shape).as_proto())
        for (extents, size), offset, crc in zip(sizes.items(), begins, masked, strict=False):
            target = entry
            if sliced:
                part = entry.slices.add()
                for start, length in extents:
                    part.extent.add(start=start, length=length)
                target = tf_compat.BundleEntry(dtype=entry.dtype)
                target.shape.CopyFrom(tf.TensorShape([n for _, n in extents]).as_proto())
            target.offset, target.size, target.crc32c = offset, size, crc
            if sliced:
                self._entries[_slice_key(name, part)] = target.SerializeToString()
        self._entries[name.encode()] = entry.SerializeToString()

    def value(self, name: str, value: Any) -> None:
        """Writes a small numeric tensor."""
        value = np.asarray(value)
        whole = tuple((0, length) for length in value.shape)
        data = value.tobytes()
        self.tensor(name, value.dtype, value.shape, {whole: len(data)}, [(0, data)], sliced=False)

    def string(self, name: str, value: bytes) -> None:
        """Writes a scalar string."""
        lengths = crc32c(len(value).to_bytes(4, "little"))
        checked = mask(lengths).to_bytes(4, "little")
        crc = mask(crc32c(checked + value, lengths))
        data = sorted_table.put_varint(len(value)) + checked + value
        self.tensor(name, tf.string, [], {(): len(data)}, [(0, data)], sliced=False, crcs=[crc])

    def finish(self) -> None:
        """Writes the index; the files are on the disk afterwards."""
        with _naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        index = f"{self.prefix}.index"
        with _naming(index), open(index, "wb") as file:
            file.write(sorted_table.build(self._entries))
            file.flush()
            os.fsync(file.fileno())

    def abandon(self) -> None:
        """Closes what is open; what was written stays, and is no checkpoint."""
        # A full disk makes the close fail too.
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, offset: int, data: Any) -> None:
        with _naming(self._path):
            self._file.seek(offset)
            self._file.write(data)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Puts the path into the message of an error of the system."""
    try:
        yield
    except OSError as error:
        raise errors.CannotWrite(f"{path}: {error.strerror}.") from error


def _slice_key(name: str, part: Any) -> bytes:
    """Returns the key of a slice's entry, by which entries sort as (name, extents) would."""
    out = _number(0) + name.encode().replace(b"\0", b"\0\xff").replace(b"\xff", b"\xff\0")
    out += b"\0\1" + _number(len(part.extent))
    for extent in part.extent:
        out += _signed(extent.start) + _signed(extent.length if extent.HasField("length") else -1)
    return out


def _number(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _signed(value: int) -> bytes:
    if value < 0:
        return b"\x7f"  # only -1 occurs
    # As many leading ones as there are bytes, then a zero, then the value.
    size = value.bit_length() // 7 + 1
    return ((((1 << size) - 1) << (7 * size)) | value).to_bytes(size, "big")
