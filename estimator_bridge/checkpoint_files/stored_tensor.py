"""Tensors as a checkpoint stores them.

Reference: tensor_slice_util.h and ordered_code.h of TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

import numpy as np

from estimator_bridge.checkpoint_files.bundle_protos import ElementType
from tf2_engine import sharding
from tf2_engine.sparsecore_layout import TableLayout
from tf2_engine.types import Array, Message

Extents = tuple[tuple[int, int], ...]
"""The part of a tensor that a slice covers: a start and a length for every dimension."""


@dataclasses.dataclass(frozen=True)
class StoredSlice:
    """A slice of a tensor in a file, with its masked checksum, if the format has checksums."""

    extents: Extents
    file: str
    offset: int
    size: int
    crc: int | None


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint, with its slices sorted by their extents."""

    name: str
    dtype: ElementType
    shape: tuple[int, ...]
    slices: tuple[StoredSlice, ...]
    sliced: bool  # False: one slice is the whole tensor

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.slices)

    @property
    def is_whole(self) -> bool:
        sizes = (math.prod(count for _, count in piece.extents) for piece in self.slices)
        return sum(sizes) == math.prod(self.shape)

    @property
    def row_size(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.size

    @property
    def part_rows(self) -> tuple[int, ...] | None:
        """The rows of each slice; None if the slices are not consecutive row blocks."""
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

    @property
    def hosts(self) -> int:
        """The number of hosts if each host stored one slice, otherwise 1."""
        rows = self.part_rows
        is_of_hosts = rows and rows == sharding.shard_rows(self.shape[0], len(rows))
        return len(rows) if rows and is_of_hosts else 1

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """The order in which a name-based checkpoint stores the rows of a table: host after host.

    With "div" this is the order of the ids. With "mod", host h of H holds the ids h, h + H, ….
    """

    rows: int
    hosts: int = 1
    strategy: str = "div"

    @property
    def parts(self) -> int:
        return min(self.rows, self.hosts)

    @property
    def part_rows(self) -> tuple[int, ...]:
        return sharding.shard_rows(self.rows, self.parts)

    def ids(self, stored: Array) -> Array:
        part = sharding.shard_of(stored, self.rows, self.parts, "div")
        local = stored - sharding.first_row(part, self.rows, self.parts)
        return sharding.global_id(part, local, self.rows, self.parts, self.strategy)

    def stored(self, ids: Array) -> Array:
        part = sharding.shard_of(ids, self.rows, self.parts, self.strategy, np.maximum)
        local = sharding.local_row(ids, self.rows, self.parts, self.strategy)
        return sharding.first_row(part, self.rows, self.parts) + local

    def __str__(self) -> str:
        return "rows by id" if self.parts == 1 else f"{self.strategy} on {self.hosts} hosts"


VariableLayout: TypeAlias = RowLayout | TableLayout
"""`stored(ids)` maps ids to row positions in the stored tensor; `ids(stored)` maps them back."""


def slice_key(name: str, part: Message) -> bytes:
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
        return b"\x7f"  # -1 is the only negative number
    # As many leading ones as there are bytes, then a zero, then the value.
    size = value.bit_length() // 7 + 1
    return ((((1 << size) - 1) << (7 * size)) | value).to_bytes(size, "big")
