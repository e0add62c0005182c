"""Computes where SparseCores store the rows of tables: stacks, padding, distribution, rotation.

The columns of a table, and its rows per SparseCore, are padded to multiples of 8. Tables with the
same padded width and optimizer share one variable, a *stack*. Each SparseCore holds a *shard* of
the stack, which consists of the tables' shards, one after the other. With n SparseCores, row `r` of
a table is on SparseCore `(r + rotation) mod n`. With each table of a stack, the rotation grows by
the number of SparseCores per core, so that the tables' first rows, often the most frequent ones,
are on different cores. In a checkpoint, a stack is one matrix: the shards one after the other.

Source: sparse_core_layout.cc and sparse_core_layout.proto in TensorFlow's core/tpu/kernels, and
tpu_embedding_v3.py.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from tf2_engine import errors
from tf2_engine.types import Array, Message, Object

SPARSE_CORES_PER_DEVICE = {"v5p": 4, "v6e": 2, "tpu7x": 2}
"""Maps kinds of TPUs to the number of SparseCores per TensorFlow device."""

ALIGNMENT = 8
"""The columns of a stack, and the rows of a table per SparseCore, are multiples of this number."""

# Upper bounds: the defaults of the XLA flags tf_xla_sparse_core_stacking_mem_limit_bytes and
# tf_xla_sparse_core_stacking_table_shard_limit_bytes, and the range of int32 row numbers.
_ACTIVATION_BYTES = 2 * 1024**2  # per stack on a SparseCore
_VARIABLE_BYTES = 2 * 1024**3  # per stack on a core
_ROWS = 2**31 - 1  # per stack


@dataclasses.dataclass(frozen=True)
class SparseCores:
    """The SparseCores of a job. Their number, `cores` times `per_core`, must be a power of two."""

    cores: int
    per_core: int

    def __post_init__(self) -> None:
        if self.cores < 1 or self.per_core < 1 or self.total & (self.total - 1):
            raise errors.InvalidSpec(
                f"{self.cores} core(s) with {self.per_core} SparseCore(s) each make {self.total}: "
                "the number of SparseCores must be a power of two. Use 1, 2, 4, 8, ... cores."
            )

    @property
    def total(self) -> int:
        return self.cores * self.per_core

    def __str__(self) -> str:
        return f"{self.total} SparseCores, {self.per_core} on each of {self.cores} core(s)"


@dataclasses.dataclass(frozen=True)
class StackableTable:
    """The properties of a table that determine its stack and position.

    Attributes:
        rows, dim: the shape of the table without padding.
        group: tables share a stack only if their groups are equal. In stock, the group is the
            optimizer and the quantization.
        samples: the number of activations per core, over all features of the table. Because of a
            bug, stock's TPUEmbeddingV2 counts only the activations of the config's first feature.
            For stock's layout, use 0 for all tables except the table of this feature.
    """

    name: str
    rows: int
    dim: int
    group: Hashable = None
    samples: int = 0
    features: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1 or self.dim < 1:
            raise errors.InvalidSpec(
                f"Table {self.name!r}: a table on SparseCores has at least one row and one column, "
                f"got {self.rows} × {self.dim}."
            )


@dataclasses.dataclass(frozen=True)
class TableLayout:
    """Where SparseCores store the rows of a table.

    Attributes:
        rows, dim: the shape without padding.
        padded_rows, padded_dim: the shape with padding.
        stack: the name of the stack: the names of its tables, joined by `_`.
        stack_rows: the rows of the stack in each shard.
        row_offset: the row in each shard at which the table begins.
        rotation: the index of the SparseCore with row 0.
    """

    table: str
    rows: int
    dim: int
    padded_rows: int
    padded_dim: int
    stack: str
    stack_rows: int
    row_offset: int
    rotation: int
    sparse_cores: SparseCores
    samples_per_sparse_core: int = 0
    features: int = 0

    @property
    def shard_rows(self) -> int:
        return self.padded_rows // self.sparse_cores.total

    @property
    def stack_shape(self) -> tuple[int, int]:
        return self.stack_rows * self.sparse_cores.total, self.padded_dim

    def shard(self, ids: Array) -> Array:
        return (ids + self.rotation) % self.sparse_cores.total

    def row_in_shard(self, ids: Array) -> Array:
        return self.row_offset + ids // self.sparse_cores.total

    def stored(self, ids: Array) -> Array:
        """Computes the row in a checkpoint's stack, [n] int64, for each id, [n] int64."""
        return self.shard(ids) * self.stack_rows + self.row_in_shard(ids)

    def ids(self, stored: Array) -> Array:
        """Computes the ids of stack rows; the inverse of `stored`.

        Padding rows have ids of `rows` or more; rows of other tables have -1.
        """
        shard, row = np.divmod(stored, self.stack_rows)
        total, row = self.sparse_cores.total, row - self.row_offset
        ids = row * total + (shard - self.rotation) % total
        return np.where((row >= 0) & (row < self.shard_rows), ids, -1)

    def __str__(self) -> str:
        return f"stack {self.stack!r} on {self.sparse_cores}"


def table_layouts(
    tables: Iterable[StackableTable], sparse_cores: SparseCores, *, stacking: bool = True
) -> dict[str, TableLayout]:
    groups: dict[Hashable, list[_Stack]] = {}
    for number, table in enumerate(sorted(tables, key=lambda table: table.name)):
        padded_dim = _round_up(table.dim, ALIGNMENT)
        stacks = groups.setdefault((padded_dim, table.group if stacking else number), [])
        stack = next((stack for stack in stacks if stack.takes(table)), None)
        if stack is None:
            stack = _Stack(padded_dim, sparse_cores)
            stacks.append(stack)
        stack.tables.append(table)
    all_stacks = [stack for stacks in groups.values() for stack in stacks]
    _check_names(all_stacks)
    layouts = [layout for stack in all_stacks for layout in stack.layouts()]
    return {layout.table: layout for layout in sorted(layouts, key=lambda layout: layout.table)}


def stacks_of(layouts: Iterable[TableLayout]) -> dict[str, tuple[TableLayout, ...]]:
    stacks: dict[str, list[TableLayout]] = {}
    for layout in layouts:
        stacks.setdefault(layout.stack, []).append(layout)
    return {
        name: tuple(sorted(stack, key=lambda layout: layout.row_offset))
        for name, stack in stacks.items()
    }


@dataclasses.dataclass
class _Stack:
    padded_dim: int
    sparse_cores: SparseCores
    tables: list[StackableTable] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        return "_".join(table.name for table in self.tables)

    def takes(self, table: StackableTable) -> bool:
        if not self.tables:
            return True
        tables, row = [*self.tables, table], 4 * self.padded_dim
        samples = sum(table.samples // self.sparse_cores.per_core for table in tables)
        rows = sum(map(self._padded_rows, tables))
        return (
            row * samples < _ACTIVATION_BYTES
            and sum(row * self._padded_rows(t) // self.sparse_cores.cores for t in tables)
            < _VARIABLE_BYTES
            and rows < _ROWS
        )

    def layouts(self) -> list[TableLayout]:
        layouts, total = [], self.sparse_cores.total
        stack_rows, offset = sum(map(self._padded_rows, self.tables)) // total, 0
        for number, table in enumerate(self.tables):
            layout = TableLayout(
                table=table.name,
                rows=table.rows,
                dim=table.dim,
                padded_rows=self._padded_rows(table),
                padded_dim=self.padded_dim,
                stack=self.name,
                stack_rows=stack_rows,
                row_offset=offset,
                rotation=number * self.sparse_cores.per_core % total,
                sparse_cores=self.sparse_cores,
                samples_per_sparse_core=table.samples // self.sparse_cores.per_core,
                features=table.features,
            )
            layouts.append(layout)
            offset += layout.shard_rows
        return layouts

    def _padded_rows(self, table: StackableTable) -> int:
        return _round_up(table.rows, ALIGNMENT * self.sparse_cores.total)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _check_names(stacks: Sequence[_Stack]) -> None:
    tables = Counter(table.name for stack in stacks for table in stack.tables)
    twice = [name for name, count in tables.items() if count > 1]
    if twice:
        raise errors.InvalidSpec(f"Two tables have the name {twice[0]!r}. Rename one of them.")
    by_name: dict[str, _Stack] = {}
    for stack in stacks:
        other = by_name.setdefault(stack.name, stack)
        if other is not stack:
            lists = " and ".join(str([t.name for t in each.tables]) for each in (other, stack))
            raise errors.InvalidSpec(
                f"The stacks of the tables {lists} are both named {stack.name!r}: a stack's name "
                "consists of the names of its tables. Rename one of these tables."
            )


@functools.cache
def _layouts() -> Object:
    """Creates the class of the message that contains layouts.

    The message has those fields of stock's `SparseCoreTableLayouts` that say where rows are stored.
    TensorFlow 2.15 does not have this proto, and later versions have no public name for it.
    """
    # `audit --target` needs this module, but not Protocol Buffers.
    from tf2_engine import described_protos

    return described_protos.message_classes(
        "tf2_engine.sparse_core_layout",
        {
            "Layout": "string table_name = 1; string stacked_table_name = 2;"
            "int32 num_sparse_cores = 3; int32 num_partitions = 4;"
            "int64 total_rows_per_sparse_core_shard = 5; repeated int64 unsharded_shape = 6;"
            "repeated int64 unsharded_padded_shape = 7; int64 sparse_core_shard_row_offset = 8;"
            "int64 sparse_core_shard_rotation = 9; int64 per_sparse_core_batch_size = 10;"
            "int64 num_features = 11",
            "Layouts": "repeated Layout tables = 1",
        },
    )["Layouts"]


# Maps a field of the message to the attribute of `TableLayout` with the same value.
_ATTRIBUTES = {
    "table_name": "table",
    "stacked_table_name": "stack",
    "total_rows_per_sparse_core_shard": "stack_rows",
    "sparse_core_shard_row_offset": "row_offset",
    "sparse_core_shard_rotation": "rotation",
    "per_sparse_core_batch_size": "samples_per_sparse_core",
    "num_features": "features",
}


def serialized(layouts: Iterable[TableLayout]) -> bytes:
    message = _layouts()()
    for layout in layouts:
        message.tables.add(
            num_sparse_cores=layout.sparse_cores.total,
            num_partitions=layout.sparse_cores.cores,
            unsharded_shape=[layout.rows, layout.dim],
            unsharded_padded_shape=[layout.padded_rows, layout.padded_dim],
            **{name: getattr(layout, attribute) for name, attribute in _ATTRIBUTES.items()},
        )
    return bytes(message.SerializeToString())


def parsed(data: bytes) -> dict[str, TableLayout]:
    from google.protobuf.message import DecodeError

    message = _layouts()()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise errors.InvalidSpec("The table layouts cannot be decoded.") from error
    layouts = {table.table_name: _layout(table) for table in message.tables}
    if not layouts or len(layouts) < len(message.tables):
        raise errors.InvalidSpec(
            "The table layouts are invalid: there is no layout, or a table has two layouts."
        )
    for stack in stacks_of(layouts.values()).values():
        for one, other in itertools.pairwise(stack):
            same = (one.stack_shape, one.sparse_cores) == (other.stack_shape, other.sparse_cores)
            if not same or one.row_offset + one.shard_rows > other.row_offset:
                raise errors.InvalidSpec(
                    f"The tables {one.table!r} and {other.table!r} are in the same stack, "
                    f"{one.stack!r}, but their layouts overlap, or differ in the stack's shape or "
                    "the number of SparseCores."
                )
    return layouts


def _layout(table: Message) -> TableLayout:
    cores, total = table.num_partitions, table.num_sparse_cores
    shape, padded = list(table.unsharded_shape), list(table.unsharded_padded_shape)
    if cores < 1 or total < cores or total % cores or len(shape) != 2 or len(padded) != 2:
        raise _impossible(table)
    layout = TableLayout(
        rows=shape[0],
        dim=shape[1],
        padded_rows=padded[0],
        padded_dim=padded[1],
        sparse_cores=SparseCores(cores, total // cores),
        **{attribute: getattr(table, name) for name, attribute in _ATTRIBUTES.items()},
    )
    fits = (
        1 <= layout.rows <= layout.padded_rows
        and 1 <= layout.dim <= layout.padded_dim
        and layout.padded_rows % (ALIGNMENT * total) == 0
        and 0 <= layout.row_offset <= layout.stack_rows - layout.shard_rows
        and 0 <= layout.rotation < total
    )
    if not fits or not layout.stack:
        raise _impossible(table)
    return layout


def _impossible(table: Message) -> errors.InvalidSpec:
    return errors.InvalidSpec(f"The layout of table {table.table_name!r} is not possible.")
