"""How to compute the tensors of a new checkpoint from the tensors of an old one."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from estimator_bridge.checkpoint_files import (
    CHUNK,
    Reader,
    RowLayout,
    StoredTensor,
    VariableLayout,
    Writer,
)
from estimator_bridge.checkpoint_files.bundle_protos import FLOAT32, ElementType
from estimator_bridge.checkpoint_files.stored_tensor import Extents
from tf2_engine.sparsecore_layout import TableLayout
from tf2_engine.types import Array


@dataclasses.dataclass(frozen=True)
class TensorMove(abc.ABC):
    """How to compute a tensor of the new checkpoint from the old tensors `sources`, if any."""

    target: str
    description: str
    shape: tuple[int, ...]

    @property
    @abc.abstractmethod
    def sources(self) -> tuple[StoredTensor, ...]: ...

    @property
    def size(self) -> int:
        return 4 * math.prod(self.shape)

    @property
    def dtype(self) -> ElementType:
        return FLOAT32

    @abc.abstractmethod
    def write(self, writer: Writer, reader: Reader) -> None: ...

    @abc.abstractmethod
    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        """Whether the written tensor has the data of its sources, which are read again."""


@dataclasses.dataclass(frozen=True)
class CopyMove(TensorMove):
    """A tensor that is copied byte by byte, slice by slice."""

    source: StoredTensor

    @property
    def sources(self) -> tuple[StoredTensor, ...]:
        return (self.source,)

    @property
    def size(self) -> int:
        return self.source.size

    @property
    def dtype(self) -> ElementType:
        return self.source.dtype

    def write(self, writer: Writer, reader: Reader) -> None:
        source, slices = self.source, self.source.slices
        sizes = {piece.extents: piece.size for piece in slices}
        data = ((n, chunk) for n, piece in enumerate(slices) for chunk in reader.chunks(piece))
        # Strings are copied again, because their checksums do not cover the plain bytes.
        crcs = [piece.crc for piece in slices if piece.crc is not None]
        writer.tensor(
            self.target,
            source.dtype,
            source.shape,
            sizes,
            data,
            sliced=source.sliced,
            crcs=crcs or None,
        )

    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        def described(tensor: StoredTensor) -> object:
            return tensor.dtype, [(part.extents, part.size) for part in tensor.slices]

        if described(written) != described(self.source):
            return False
        new.verify(written)
        return all(
            original.crc in (None, copy.crc)
            and all(a == b for a, b in zip(new.chunks(copy), reader.chunks(original), strict=True))
            for copy, original in zip(written.slices, self.source.slices, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.description}: {self.source.name} -> {self.target}  {self.source}"


@dataclasses.dataclass(frozen=True)
class JoinedMove(CopyMove):
    """A tensor that is copied from several slices, each a block of rows, into one slice."""

    def write(self, writer: Writer, reader: Reader) -> None:
        whole = tuple((0, length) for length in self.shape)
        data = ((0, chunk) for piece in self.source.slices for chunk in reader.chunks(piece))
        writer.tensor(self.target, self.dtype, self.shape, {whole: self.size}, data, sliced=False)

    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        position = written.slices[0].offset
        for piece in self.source.slices:
            copy = dataclasses.replace(written.slices[0], offset=position, size=piece.size)
            pairs = zip(new.chunks(copy), reader.chunks(piece), strict=True)
            if any(a != b for a, b in pairs):
                return False
            position += piece.size
        return (written.dtype, written.shape) == (self.dtype, self.shape)


@dataclasses.dataclass(frozen=True)
class PartRows:
    """A table's old parameters, or an old slot, [rows, dim]; `fill` replaces a missing source."""

    source: StoredTensor | None
    shape: tuple[int, int]
    layout: VariableLayout
    fill: float = 0.0

    @property
    def sources(self) -> tuple[StoredTensor, ...]:
        return () if self.source is None else (self.source,)

    def read(self, reader: Reader, ids: Array) -> Array:
        if self.source is None:
            return np.full([len(ids), self.shape[1]], self.fill, np.float32)
        return reader.rows(self.source, self.layout.stored(ids))[:, : self.shape[1]]

    def __str__(self) -> str:
        return f"filled with {self.fill}" if self.source is None else self.source.name


@dataclasses.dataclass(frozen=True)
class RowMove(TensorMove):
    """A table's parameters, or a slot; the new checkpoint may store rows in another order."""

    rows: PartRows
    new_layout: RowLayout

    @property
    def sources(self) -> tuple[StoredTensor, ...]:
        return self.rows.sources

    def write(self, writer: Writer, reader: Reader) -> None:
        sizes: dict[Extents, int] = {}
        first = 0
        for rows in self.new_layout.part_rows:
            sizes[((first, rows), (0, self.shape[1]))] = rows * self._row_size
            first += rows
        sliced = self.new_layout.parts > 1
        buffers = self._buffers(reader)
        writer.tensor(self.target, FLOAT32, self.shape, sizes, buffers, sliced=sliced)

    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        for ids in self._chunks_of_ids():
            # Writing used each layout in one direction only, so this checks the other direction.
            for layout in (self.rows.layout, self.new_layout):
                if not np.array_equal(layout.ids(layout.stored(ids)), ids):
                    return False
            rows = new.rows(written, self.new_layout.stored(ids))
            # The rows are compared as bytes, because NaN differs from itself as a number.
            if self.rows.read(reader, ids).tobytes() != rows.tobytes():
                return False
        return bool(written.dtype == FLOAT32)

    def _buffers(self, reader: Reader) -> Iterator[tuple[int, bytes]]:
        firsts = np.cumsum([0, *self.new_layout.part_rows])
        for ids in self._chunks_of_ids():
            values = self.rows.read(reader, ids)
            part = np.searchsorted(firsts, self.new_layout.stored(ids), "right") - 1
            for number in np.unique(part).tolist():
                yield number, values[part == number].tobytes()

    def _chunks_of_ids(self) -> Iterator[Array]:
        yield from chunks(self.shape[0], max(1, CHUNK // max(1, self._row_size)))

    @property
    def _row_size(self) -> int:
        return 4 * self.shape[1]

    def __str__(self) -> str:
        return (
            f"{self.description}: {self.rows} -> {self.target}  float32{list(self.shape)}  "
            f"({self.rows.layout} -> {self.new_layout})"
        )


@dataclasses.dataclass(frozen=True)
class StackedPart:
    """A table's parameters, or a slot, in a SparseCore stack; padding has the value `padding`."""

    rows: PartRows
    layout: TableLayout
    padding: float = 0.0

    def read(self, reader: Reader, ids: Array) -> Array:
        values = np.full([len(ids), self.layout.padded_dim], self.padding, np.float32)
        inside = ids < self.layout.rows
        values[inside, : self.layout.dim] = self.rows.read(reader, ids[inside])
        return values

    def chunks_of_ids(self) -> Iterator[Array]:
        total = self.layout.sparse_cores.total
        step = max(1, CHUNK // (4 * self.layout.padded_dim * total)) * total
        yield from chunks(self.layout.padded_rows, step)


@dataclasses.dataclass(frozen=True)
class StackMove(TensorMove):
    """A stack with the parameters, or the same slot, of several tables: one slice per core."""

    parts: tuple[StackedPart, ...]  # in the order of their rows

    @property
    def sources(self) -> tuple[StoredTensor, ...]:
        return tuple(source for part in self.parts for source in part.rows.sources)

    def write(self, writer: Writer, reader: Reader) -> None:
        sparse_cores = self.parts[0].layout.sparse_cores
        rows, width = self.shape[0] // sparse_cores.cores, self.shape[1]
        sizes: dict[Extents, int] = {
            ((core * rows, rows), (0, width)): 4 * rows * width
            for core in range(sparse_cores.cores)
        }
        writer.tensor(
            self.target,
            FLOAT32,
            self.shape,
            sizes,
            self._buffers(reader),
            sliced=sparse_cores.cores > 1,
            runs=sparse_cores.per_core,
        )

    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        for part in self.parts:
            old, layout = part.rows.layout, part.layout
            for ids in part.chunks_of_ids():
                in_table = ids[ids < layout.rows]
                if not np.array_equal(old.ids(old.stored(in_table)), in_table):
                    return False
                if not np.array_equal(layout.ids(layout.stored(ids)), ids):
                    return False
                rows = new.rows(written, layout.stored(ids))
                if part.read(reader, ids).tobytes() != rows.tobytes():
                    return False
        return bool(written.dtype == FLOAT32)

    def _buffers(self, reader: Reader) -> Iterator[tuple[int, bytes]]:
        for part in self.parts:
            total = part.layout.sparse_cores.total
            for ids in part.chunks_of_ids():
                values = part.read(reader, ids).reshape(-1, total, self.shape[1])
                for position, shard in enumerate(part.layout.shard(ids[:total]).tolist()):
                    yield shard, values[:, position].tobytes()

    def __str__(self) -> str:
        layout = self.parts[0].layout
        tables = "; ".join(
            f"{part.layout.table!r}: {part.rows}, {part.rows.layout}" for part in self.parts
        )
        return (
            f"{self.description} ({tables}) -> {self.target}  float32{list(self.shape)}  "
            f"({layout.sparse_cores})"
        )


def chunks(rows: int, step: int) -> Iterator[Array]:
    for first in range(0, rows, step):
        yield np.arange(first, min(rows, first + step))
