"""Tensors as a checkpoint stores them: shape, type, and slices, which have keys of their own.

Reference: tensor_slice_util.h and ordered_code.h of TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math

from tf2_engine.types import DType, Message

Extents = tuple[tuple[int, int], ...]
"""The part of a tensor that a slice is: for every dimension its start and its length."""


@dataclasses.dataclass(frozen=True)
class StoredSlice:
    """A slice of a tensor, in a data file.

    Attributes:
        extents: the part of the tensor that it is.
        file: the path of the file that holds it, from `offset` on.
        size: its size in bytes.
        crc: its masked checksum, as stored.
    """

    extents: Extents
    file: str
    offset: int
    size: int
    crc: int


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint.

    Attributes:
        slices: in the order of their extents; one, the whole tensor, unless it is `sliced`.
        sliced: whether it is stored as slices.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    slices: tuple[StoredSlice, ...]
    sliced: bool

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return sum(piece.size for piece in self.slices)

    @property
    def row_size(self) -> int:
        """The bytes of a row, that is, of one index of the first dimension."""
        return math.prod(self.shape[1:]) * int(self.dtype.size)

    @property
    def part_rows(self) -> tuple[int, ...] | None:
        """The number of rows of each slice; None if the slices are not consecutive blocks."""
        if not self.shape:
            return None
        counts: list[int] = []
        for piece in self.slices:
            whole_rows = piece.extents[1:] == tuple((0, length) for length in self.shape[1:])
            first, count = piece.extents[0]
            if not whole_rows or first != sum(counts):
                return None
            counts.append(count)
        return tuple(counts) if sum(counts) == self.shape[0] else None

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


def slice_key(name: str, part: Message) -> bytes:
    """Returns the key of a slice's entry; keys sort as (name, extents) would.

    Args:
        name: the name of the tensor.
        part: a `TensorSliceProto`.
    """
    key = _number(0) + name.encode().replace(b"\0", b"\0\xff").replace(b"\xff", b"\xff\0")
    key += b"\0\1" + _number(len(part.extent))
    for extent in part.extent:
        key += _signed(extent.start) + _signed(extent.length if extent.HasField("length") else -1)
    return key


def _number(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _signed(value: int) -> bytes:
    if value < 0:
        return b"\x7f"  # only -1 occurs
    # As many leading ones as there are bytes, then a zero, then the value.
    size = value.bit_length() // 7 + 1
    return ((((1 << size) - 1) << (7 * size)) | value).to_bytes(size, "big")
