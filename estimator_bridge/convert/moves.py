"""The tensors of a new checkpoint: where each comes from, and how its bytes are made."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from estimator_bridge.checkpoint_files import CHUNK, Reader, RowLayout, StoredTensor, Writer
from tf2_engine.types import Array


@dataclasses.dataclass(frozen=True)
class TensorMove(abc.ABC):
    """A tensor of the new checkpoint, which is made of `source`, or filled if that is None."""

    target: str
    source: StoredTensor | None
    description: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The bytes to write."""
        return 4 * math.prod(self.shape) if self.source is None else self.source.size

    @abc.abstractmethod
    def write(self, writer: Writer, reader: Reader) -> None:
        """Writes the tensor, whose source `reader` reads."""

    @abc.abstractmethod
    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        """Whether the new checkpoint holds the data of the source, read again from both."""


@dataclasses.dataclass(frozen=True)
class CopyMove(TensorMove):
    """A tensor that is copied byte for byte, in its slices."""

    source: StoredTensor

    def write(self, writer: Writer, reader: Reader) -> None:
        source, slices = self.source, self.source.slices
        sizes = {piece.extents: piece.size for piece in slices}
        data = ((n, chunk) for n, piece in enumerate(slices) for chunk in reader.chunks(piece))
        crcs = [piece.crc for piece in slices]  # Those of strings do not cover the plain bytes.
        writer.tensor(
            self.target, source.dtype, source.shape, sizes, data, sliced=source.sliced, crcs=crcs
        )

    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        def described(tensor: StoredTensor) -> object:
            return tensor.dtype, [(part.extents, part.size, part.crc) for part in tensor.slices]

        return described(written) == described(self.source) and all(
            a == b
            for copy, original in zip(written.slices, self.source.slices, strict=True)
            for a, b in zip(new.chunks(copy), reader.chunks(original), strict=True)
        )

    def __str__(self) -> str:
        return f"{self.description}: {self.source.name} -> {self.target}  {self.source}"


@dataclasses.dataclass(frozen=True)
class RowMove(TensorMove):
    """A part of a table: [rows, dim] float32, whose rows may move; without a source, all `fill`."""

    old_layout: RowLayout
    new_layout: RowLayout
    fill: float = 0.0

    def write(self, writer: Writer, reader: Reader) -> None:
        sizes, first = {}, 0
        for rows in self.new_layout.part_rows:
            extents = ((first, rows), *((0, length) for length in self.shape[1:]))
            sizes[extents] = rows * self._row_size
            first += rows
        sliced = self.new_layout.parts > 1
        buffers = self._buffers(reader)
        writer.tensor(self.target, tf.float32, self.shape, sizes, buffers, sliced=sliced)

    def equals(self, written: StoredTensor, new: Reader, reader: Reader) -> bool:
        for ids in self._chunks_of_ids():
            # Writing used the layouts in one direction; they must lead back as well.
            for layout in (self.old_layout, self.new_layout):
                if not np.array_equal(layout.ids(layout.stored(ids)), ids):
                    return False
            rows = new.rows(written, self.new_layout.stored(ids))
            # As bytes, in which a NaN equals itself.
            if self._values(reader, ids).tobytes() != rows.tobytes():
                return False
        return bool(written.dtype == tf.float32)

    def _buffers(self, reader: Reader) -> Iterator[tuple[int, bytes]]:
        """Yields the bytes of slices, by id, so that both files are passed through in order."""
        firsts = np.cumsum([0, *self.new_layout.part_rows])
        for ids in self._chunks_of_ids():
            values = self._values(reader, ids)
            part = np.searchsorted(firsts, self.new_layout.stored(ids), "right") - 1
            for number in np.unique(part).tolist():
                yield number, values[part == number].tobytes()

    def _values(self, reader: Reader, ids: Array) -> Array:
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
