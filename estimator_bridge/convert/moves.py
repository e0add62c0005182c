"""The tensors of a new checkpoint: where each comes from, and how its bytes are made."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from estimator_bridge.checkpoint_files.bundle_reader import CHUNK, Reader
from estimator_bridge.checkpoint_files.object_graph import Path
from estimator_bridge.checkpoint_files.row_layout import RowLayout
from estimator_bridge.checkpoint_files.stored_tensor import Extents, StoredTensor
from tf2_engine.types import Array, DType


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorMove(abc.ABC):
    """A tensor of the new checkpoint.

    Attributes:
        target: its name there.
        source: the tensor that it is made of, None if it is filled.
        description: how messages call it.
        shape: its shape.
        path: the path of its object; None in a name-based checkpoint.
    """

    target: str
    source: StoredTensor | None
    description: str
    shape: tuple[int, ...]
    path: Path | None = None

    @property
    @abc.abstractmethod
    def dtype(self) -> DType:
        """The type of the tensor."""

    @property
    @abc.abstractmethod
    def sizes(self) -> dict[Extents, int]:
        """The bytes of each slice to write, by its extents."""

    @property
    @abc.abstractmethod
    def sliced(self) -> bool:
        """Whether the tensor is to be stored as slices."""

    @property
    def crcs(self) -> Sequence[int] | None:
        """The masked checksums of the slices; None if they are to be computed."""
        return None

    @property
    def size(self) -> int:
        """The bytes to write."""
        return sum(self.sizes.values())

    @abc.abstractmethod
    def buffers(self, reader: Reader) -> Iterator[tuple[int, bytes]]:
        """Yields the data: the number of a slice, and the bytes that come next in it."""

    @abc.abstractmethod
    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        """Whether the new checkpoint holds the data of the source, read again from both."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyMove(TensorMove):
    """A tensor that is copied byte for byte, in its slices."""

    source: StoredTensor

    @property
    def dtype(self) -> DType:
        """The type of the tensor."""
        return self.source.dtype

    @property
    def sizes(self) -> dict[Extents, int]:
        """The bytes of each slice to write, by its extents."""
        return {piece.extents: piece.size for piece in self.source.slices}

    @property
    def sliced(self) -> bool:
        """Whether the tensor is to be stored as slices."""
        return self.source.sliced

    @property
    def crcs(self) -> Sequence[int]:
        """The masked checksums of the slices; those of strings do not cover the plain bytes."""
        return [piece.crc for piece in self.source.slices]

    def buffers(self, reader: Reader) -> Iterator[tuple[int, bytes]]:
        """Yields the data: the number of a slice, and the bytes that come next in it."""
        for number, piece in enumerate(self.source.slices):
            for data in reader.chunks(piece):
                yield number, data

    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        """Whether the new checkpoint holds the data of the source, read again from both."""
        pairs = list(zip(written.slices, self.source.slices, strict=False))
        return len(written.slices) == len(self.source.slices) and all(
            (copy.extents, copy.size, copy.crc) == (original.extents, original.size, original.crc)
            and all(a == b for a, b in zip(new.chunks(copy), reader.chunks(original), strict=True))
            for copy, original in pairs
        )

    def __str__(self) -> str:
        return f"{self.description}: {self.source.name} -> {self.target}  {self.source}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowMove(TensorMove):
    """The parameters or a slot of a table: [rows, dim] float32, whose rows may change places.

    Attributes:
        old_layout, new_layout: the orders of the rows in both checkpoints.
        fill: the value of all elements, if there is no source.
    """

    old_layout: RowLayout
    new_layout: RowLayout
    fill: float = 0.0

    @property
    def dtype(self) -> DType:
        """The type of the tensor."""
        return tf.float32

    @property
    def sizes(self) -> dict[Extents, int]:
        """The bytes of each slice to write, one for each host that holds rows, by its extents."""
        sizes, first = {}, 0
        for rows in self.new_layout.part_rows:
            extents = ((first, rows), *((0, length) for length in self.shape[1:]))
            sizes[extents] = rows * self._row_size
            first += rows
        return sizes

    @property
    def sliced(self) -> bool:
        """Whether the tensor is to be stored as slices."""
        return self.new_layout.parts > 1

    def buffers(self, reader: Reader) -> Iterator[tuple[int, bytes]]:
        """Yields the rows as bytes, with the number of the slice in which they come next.

        The ids are visited once in their order, so both files are read and written in order too.
        """
        firsts = np.cumsum([0, *self.new_layout.part_rows])
        for ids in self._chunks_of_ids():
            values = self._values(reader, ids)
            part = np.searchsorted(firsts, self.new_layout.stored(ids), "right") - 1
            for number in np.unique(part).tolist():
                yield number, values[part == number].tobytes()

    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        """Whether the new checkpoint holds the data of the source, read again from both."""
        return all(self._same_rows(written, new, reader, ids) for ids in self._chunks_of_ids())

    def _same_rows(self, written: StoredTensor, new: Reader, reader: Reader, ids: Array) -> bool:
        # Writing used the layouts in one direction; they must lead back as well.
        for layout in (self.old_layout, self.new_layout):
            if not np.array_equal(layout.ids(layout.stored(ids)), ids):
                return False
        rows = new.rows(written, self.new_layout.stored(ids))
        # As bytes, in which a NaN equals itself.
        return bool(self._values(reader, ids).tobytes() == rows.tobytes())

    def _values(self, reader: Reader, ids: Array) -> Array:
        """Returns the rows of ids: [n, dim] float32."""
        if self.source is None:
            return np.full([len(ids), *self.shape[1:]], self.fill, np.float32)
        return reader.rows(self.source, self.old_layout.stored(ids))

    def _chunks_of_ids(self) -> Iterator[Array]:
        """Yields all ids, [n] int64, in their order."""
        step = max(1, CHUNK // max(1, self._row_size))
        for first in range(0, self.shape[0], step):
            yield np.arange(first, min(self.shape[0], first + step))

    @property
    def _row_size(self) -> int:
        return 4 * math.prod(self.shape[1:])

    def __str__(self) -> str:
        source = f"filled with {self.fill}" if self.source is None else self.source.name
        return (
            f"{self.description}: {source} -> {self.target}  float32{list(self.shape)}  "
            f"({self.old_layout} -> {self.new_layout})"
        )
