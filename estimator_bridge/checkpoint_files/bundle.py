"""Reads and writes the tensors of checkpoints in pieces.

TensorFlow reads and writes only whole slices, which needs more memory.

Reference: tensor_bundle.proto and tensor_bundle.h of TensorFlow.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from google.protobuf import text_format

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import bundle_protos, index_file, stored_tensor
from estimator_bridge.checkpoint_files.bundle_protos import STRING, ElementType
from estimator_bridge.checkpoint_files.index_file import crc32c, mask
from estimator_bridge.checkpoint_files.stored_tensor import Extents, StoredSlice, StoredTensor
from tf2_engine.types import Array, Message

CHUNK = 16 << 20
"""Bytes to read or write at a time."""

_MAX_GAP = 1 << 16  # rows closer than this are read together with the bytes between them


class Reader(contextlib.AbstractContextManager["Reader"]):
    """Reads a checkpoint; a context manager. The path has no ".index" at its end.

    Opening reads the index, and raises UnreadableCheckpoint if a file is missing, too short, or not
    a checkpoint.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._files: dict[str, BinaryIO] = {}
        self._sizes: dict[str, int] = {}
        self._index = f"{prefix}.index"
        entries = index_file.read(self._index)
        try:
            header = bundle_protos.BundleHeader.FromString(entries.pop(b"", b""))
            parsed = {
                key: bundle_protos.BundleEntry.FromString(data) for key, data in entries.items()
            }
        except Exception as error:  # DecodeError, whose module depends on the version of protobuf
            raise self._damaged_index("an entry cannot be decoded") from error
        if header.endianness != bundle_protos.LITTLE_ENDIAN or not header.num_shards:
            raise self._damaged_index("it was written by a big-endian machine or has no header")
        self._num_shards = header.num_shards
        # Slices have entries of their own, whose keys begin with a zero byte.
        tensors = [self._tensor(key, parsed) for key in parsed if not key.startswith(b"\0")]
        self.tensors = {tensor.name: tensor for tensor in tensors}
        # No byte belongs to two tensors, so a small file cannot claim to contain large tables.
        if sum(tensor.size for tensor in tensors) > sum(self._sizes.values()):
            raise self._damaged_index("its tensors are larger than all its files together")

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    @property
    def files(self) -> list[str]:
        return [self._index, *sorted(self._sizes)]

    def chunks(self, piece: StoredSlice) -> Iterator[bytes]:
        for start in range(0, piece.size, CHUNK):
            yield self._read(piece.file, piece.offset + start, min(CHUNK, piece.size - start))

    def verify(self, tensor: StoredTensor) -> None:
        """Compares the checksums of a tensor; raises UnreadableCheckpoint if one is wrong."""
        if tensor.dtype == STRING:
            self.strings(tensor)
        elif tensor.dtype.size:  # only TensorFlow can check types such as variants
            for piece in tensor.slices:
                crc = 0
                for data in self.chunks(piece):
                    crc = crc32c(data, crc)
                _check(crc, piece, tensor)

    def rows(self, tensor: StoredTensor, rows: Array) -> Array:
        """Reads some rows of a tensor that is stored in blocks of rows."""
        out = np.empty([len(rows), *tensor.shape[1:]], tensor.dtype.as_numpy)
        if not out.size:
            return out
        order = np.argsort(rows, kind="stable")
        ordered = np.asarray(rows, np.int64)[order]
        for begin, end in _groups(tensor, ordered):
            first, last = int(ordered[begin]), int(ordered[end - 1])
            block = self._block(tensor, first, last + 1)
            places, wanted = order[begin:end], ordered[begin:end] - first
            if len(wanted) == len(block) and np.all(np.diff(places) == 1):  # avoids a copy
                out[places[0] : places[0] + len(block)] = block
            else:
                out[places] = block[wanted]
        return out

    def value(self, name: str) -> Array:
        tensor = self.tensors[name]
        self.verify(tensor)
        data = b"".join(self.chunks(tensor.slices[0]))
        return np.frombuffer(data, tensor.dtype.as_numpy).reshape(tensor.shape)

    def strings(self, tensor: StoredTensor) -> list[bytes]:
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
        blocks = []
        for piece in tensor.slices:
            first, count = piece.extents[0]
            low, high = max(begin, first), min(end, first + count)
            if low < high:
                offset = piece.offset + (low - first) * tensor.row_size
                blocks.append(self._read(piece.file, offset, (high - low) * tensor.row_size))
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return np.frombuffer(data, tensor.dtype.as_numpy).reshape(-1, *tensor.shape[1:])

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

    def _tensor(self, key: bytes, entries: Mapping[bytes, Message]) -> StoredTensor:
        entry = entries[key]
        try:
            name, dtype = key.decode(), bundle_protos.TYPES[entry.dtype]
        except (KeyError, ValueError):
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
            stored = entries.get(stored_tensor.slice_key(name, part))
            inside = len(part.extent) == len(shape) and all(
                min(start, count) >= 0 and start + count <= length
                for (start, count), length in zip(extents, shape, strict=True)
            )
            if stored is None or not inside or stored.dtype != dtype.number:
                raise self._damaged_index(f"a slice of {name!r} is missing")
            pieces.append(self._slice(name, dtype, extents, stored))
        pieces.sort(key=lambda piece: piece.extents)
        return StoredTensor(name, dtype, shape, tuple(pieces), True)

    def _slice(
        self, name: str, dtype: ElementType, extents: Extents, entry: Message
    ) -> StoredSlice:
        count, size = _num_elements(extents), int(entry.size)
        # A string takes at least one byte, for its length.
        fits = size == count * dtype.size if dtype.size else size >= count
        if not fits or entry.offset < 0 or not 0 <= entry.shard_id < self._num_shards:
            described = f"{count} elements of {dtype.name} in {size} bytes"
            raise self._damaged_index(f"{name!r} has {described}")
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
                    f"{path}: {error.strerror}. Copy all files of the checkpoint, or use another "
                    "checkpoint."
                ) from error
        return self._sizes[path]

    def _damaged_index(self, reason: str) -> errors.UnreadableCheckpoint:
        return errors.UnreadableCheckpoint(
            f"{self._index}: {reason}. It is damaged; use another checkpoint."
        )


class Writer:
    """Writes a checkpoint with one data file; calls `wrote` with the number of bytes written."""

    def __init__(self, prefix: str, wrote: Callable[[int], None] = lambda size: None) -> None:
        self.prefix = prefix
        self._wrote = wrote
        self._path = f"{prefix}.data-00000-of-00001"
        header = bundle_protos.BundleHeader(num_shards=1)
        header.version.producer = 1
        self._entries = {b"": header.SerializeToString()}
        self._offset = 0
        with naming(self._path):
            self._file = open(self._path, "w+b")  # noqa: SIM115 - closed in `finish` and `abandon`

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
        """Writes a tensor in slices or, if not `sliced`, as one slice.

        Each slice consists of `runs` runs of equal length, which may be written alternately.

        Args:
            sizes: maps the extents of each slice to the slice's size in bytes.
            buffers: pairs of a run's index (from 0, counted over all slices) and its next bytes.
            crcs: the masked checksums of the slices; if None, they are computed.
        """
        begins = list(itertools.accumulate(sizes.values(), initial=self._offset))
        pairs = list(itertools.pairwise(begins))
        positions = [a + (b - a) // runs * run for a, b in pairs for run in range(runs)]
        ends, computed = [*positions[1:], begins[-1]], [0] * len(positions)
        for number, data in self._written(self._path, self._file, positions, buffers):
            if crcs is None:
                computed[number] = crc32c(data, computed[number])
        assert positions == ends
        self._offset = begins[-1]
        if crcs is None and runs > 1:
            computed = [self._crc(*pair) for pair in pairs]
        masked = [mask(crc) for crc in computed] if crcs is None else crcs
        stored = dtype if isinstance(dtype, ElementType) else bundle_protos.type_of(dtype)
        entry = _entry(stored, shape)
        for (extents, size), offset, crc in zip(sizes.items(), begins, masked, strict=False):
            target = entry
            if sliced:
                part = entry.slices.add()
                for start, length in extents:
                    part.extent.add(start=start, length=length)
                target = _entry(stored, [length for _, length in extents])
            target.offset, target.size, target.crc32c = offset, size, crc
            if sliced:
                self._entries[stored_tensor.slice_key(name, part)] = target.SerializeToString()
        self._entries[name.encode()] = entry.SerializeToString()

    def _written(
        self, path: str, file: BinaryIO, positions: list[int], buffers: Iterable[tuple[int, bytes]]
    ) -> Iterator[tuple[int, bytes]]:
        for number, data in buffers:
            with naming(path):
                file.seek(positions[number])
                file.write(data)
            self._wrote(len(data))
            positions[number] += len(data)
            yield number, data

    def value(self, name: str, value: npt.ArrayLike) -> None:
        value = np.asarray(value)
        whole = tuple((0, length) for length in value.shape)
        data = value.tobytes()
        self.tensor(name, value.dtype, value.shape, {whole: len(data)}, [(0, data)], sliced=False)

    def string(self, name: str, value: bytes) -> None:
        lengths = crc32c(len(value).to_bytes(4, "little"))
        checked = mask(lengths).to_bytes(4, "little")
        crc = mask(crc32c(checked + value, lengths))
        data = index_file.put_varint(len(value)) + checked + value
        self.tensor(name, STRING, [], {(): len(data)}, [(0, data)], sliced=False, crcs=[crc])

    def finish(self) -> None:
        with naming(self._path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        write_durably(f"{self.prefix}.index", index_file.build(self._entries))

    def abandon(self) -> None:
        # Closing fails too if the disk is full.
        with contextlib.suppress(OSError):
            self._file.close()

    def _crc(self, begin: int, end: int) -> int:
        crc = 0
        with naming(self._path):
            self._file.seek(begin)
            for start in range(begin, end, CHUNK):
                crc = crc32c(self._file.read(min(CHUNK, end - start)), crc)
        return crc


def find(path: str) -> str:
    """Returns `path` without ".index" or, for a directory, the path of its latest checkpoint."""
    path = os.fspath(path)
    if not os.path.isdir(path):
        return path.removesuffix(".index")
    state = bundle_protos.CheckpointState()
    with contextlib.suppress(OSError, ValueError, text_format.ParseError):
        text_format.Parse(pathlib.Path(path, "checkpoint").read_text(), state)
    latest = os.path.join(path, state.model_checkpoint_path)
    if not state.model_checkpoint_path or not os.path.exists(f"{latest}.index"):
        raise errors.UnreadableCheckpoint(
            f"{path}: the directory has no `checkpoint` file that names a checkpoint. Give the "
            "path of a checkpoint, without .index."
        )
    return latest


def write_durably(path: str, data: bytes) -> None:
    with naming(path), open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.CannotWrite(f"{path}: {error.strerror}.") from error


def _groups(tensor: StoredTensor, rows: Array) -> Iterator[tuple[int, int]]:
    rows_per_chunk = max(1, CHUNK // max(1, tensor.row_size))
    far = np.diff(rows) * tensor.row_size > max(_MAX_GAP, tensor.row_size)
    cut = far | (np.diff((rows - rows[0]) // rows_per_chunk) > 0)
    yield from itertools.pairwise([0, *(np.flatnonzero(cut) + 1).tolist(), len(rows)])


def _entry(dtype: ElementType, shape: Iterable[int]) -> Message:
    entry = bundle_protos.BundleEntry(dtype=dtype.number)
    entry.shape.SetInParent()  # a scalar's shape is empty, not missing
    for length in shape:
        entry.shape.dim.add(size=length)
    return entry


def _num_elements(extents: Extents) -> int:
    return math.prod(length for _, length in extents)


def _check(crc: int, piece: StoredSlice, tensor: StoredTensor) -> None:
    if mask(crc) != piece.crc:
        raise _damaged_slice(piece, tensor)


def _damaged_slice(piece: StoredSlice, tensor: StoredTensor) -> errors.UnreadableCheckpoint:
    return errors.UnreadableCheckpoint(
        f"{piece.file}: the checksum of {tensor.name!r} is wrong, so the file is damaged. Use "
        "another checkpoint."
    )
