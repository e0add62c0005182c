"""Places rows of tables on parameter servers, and cores on workers. Pure.

A placement is about machines alone: the layout of a checkpoint, the core that owns a row, and every
number of a step are the same whatever it is. `num_hosts` of a plan is another thing.

Small tables are whole, on one parameter server each: the largest first, to the emptiest. Of large
tables every parameter server holds some rows, by one of these layouts:

* "div": as many contiguous parts as there are parameter servers. Vocabularies are mostly sorted by
  frequency, and then the first part gets most of the lookups.
* "mod": row `i` is on parameter server `i % n`. Even, but no part is contiguous in a checkpoint.
* "octaves": each range of rows [V / 2^(j+1), V / 2^j) is cut into `n` contiguous parts, which
  rotate over the parameter servers. As even as "mod", and each part is contiguous.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from tf2_engine import errors, sharding
from tf2_engine.types import Array

Layout: TypeAlias = Literal["div", "mod", "octaves"]

LAYOUTS: tuple[Layout, ...] = get_args(Layout)

FLOAT_BYTES = 4

SMALL_TABLE_BYTES = 1 << 20
"""Tables of at most so many bytes, slots included, are whole by default.

A batch looks most of such a table's rows up anyway, and one server less is asked for them.
"""

_SMALLEST_PART = 2
"""Rows that each part of the first, smallest octave has at least."""


@dataclasses.dataclass(frozen=True)
class TableSize:
    """The size of a table, as a placement needs it.

    `variables` counts its parameters and slots, each [rows, dim] float32.
    """

    name: str
    rows: int
    dim: int
    variables: int = 1

    @property
    def row_bytes(self) -> int:
        """The bytes of a row: its parameters and slots."""
        return self.variables * self.dim * FLOAT_BYTES

    @property
    def bytes(self) -> int:
        """The bytes of the whole table: parameters and slots."""
        return self.rows * self.row_bytes


class RowRange(NamedTuple):
    """Rows `first`, `first + step`, ... of a table, `rows` of them, that a server has in order.

    The server is that of the part with the number `part`; see `TablePlacement.servers`.
    """

    first: int
    rows: int
    step: int
    part: int


@dataclasses.dataclass(frozen=True)
class TablePlacement:
    """The parts of one table: part `k` is a variable on parameter server `servers[k]`.

    The rows of a part are its ranges of `ranges`, one after the other. Those are in the order of
    their first rows and hold every row of the table exactly once.
    """

    size: TableSize
    layout: Layout
    servers: tuple[int, ...]
    ranges: tuple[RowRange, ...]

    @property
    def is_whole(self) -> bool:
        """Whether one parameter server holds the whole table."""
        return len(self.servers) == 1

    @functools.cached_property
    def part_rows(self) -> tuple[int, ...]:
        """The number of rows of each part."""
        rows = [0] * len(self.servers)
        for row_range in self.ranges:
            rows[row_range.part] += row_range.rows
        return tuple(rows)

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """The bytes of each part: parameters and slots."""
        return tuple(rows * self.size.row_bytes for rows in self.part_rows)

    def ranges_of(self, part: int) -> tuple[RowRange, ...]:
        """Returns the ranges of a part, in the order of its rows."""
        return tuple(row_range for row_range in self.ranges if row_range.part == part)

    def part_of(self, ids: Array) -> Array:
        """Returns the part that holds each id; ids are integers of any shape."""
        return self.lines.part[self._line_of(ids)]

    def local_row(self, ids: Array) -> Array:
        """Returns the row of each id inside the part that holds it."""
        line = self._line_of(ids)
        return (ids - self.lines.first[line]) // self.lines.step[line] + self.lines.start[line]

    def ids_of(self, part: int) -> Array:
        """Returns the ids of all rows of a part, in the order of its rows, int64."""
        return np.concatenate(
            [
                np.arange(r.first, r.first + r.rows * r.step, r.step, dtype=np.int64)
                for r in self.ranges_of(part)
            ]
        )

    @functools.cached_property
    def lines(self) -> RowLines:
        """The map from ids to parts as columns, for code that computes it with ops of its own."""
        starts, filled = [], [0] * len(self.servers)
        for row_range in self.ranges:
            starts.append(filled[row_range.part])
            filled[row_range.part] += row_range.rows
        first, _, step, part = (
            np.array(column, np.int64) for column in zip(*self.ranges, strict=True)
        )
        return RowLines(first, step, part, np.array(starts, np.int64))

    def _line_of(self, ids: Array) -> Array:
        if self.layout == "mod" and not self.is_whole:
            return ids % len(self.servers)
        return np.searchsorted(self.lines.first, ids, side="right") - 1


class RowLines(NamedTuple):
    """The ranges of a table as columns, each [number of ranges] int64, by ascending `first`.

    The range of an id is the last one whose `first` is not above it; in the layout "mod" of several
    parts it is that of the number `id % number of parts`. The id is in row
    `(id - first) // step + start` of the range's `part`.
    """

    first: Array
    step: Array
    part: Array
    start: Array


@dataclasses.dataclass(frozen=True)
class Placement:
    """The places of all tables on `num_servers` parameter servers, by name of the table."""

    num_servers: int
    tables: Mapping[str, TablePlacement]

    @property
    def server_bytes(self) -> tuple[int, ...]:
        """The bytes that each parameter server holds: parameters and slots."""
        return tuple(_bytes_on(self.num_servers, self.tables.values()))

    def tables_of(self, server: int) -> dict[str, int]:
        """Returns the tables of which a server holds rows, each with the number of its part."""
        return {
            name: table.servers.index(server)
            for name, table in self.tables.items()
            if server in table.servers
        }


@dataclasses.dataclass(frozen=True)
class Servers:
    """The parameter servers that hold tables, by device, and how tables are spread over them."""

    devices: tuple[str, ...]
    layout: Layout = "div"
    whole_up_to: int = SMALL_TABLE_BYTES

    def place(self, tables: Sequence[TableSize]) -> Placement:
        """Returns the placement of tables; raises as `place_tables`."""
        return place_tables(
            tables, len(self.devices), layout=self.layout, whole_up_to=self.whole_up_to
        )

    def devices_of(self, table: TablePlacement) -> tuple[str, ...]:
        """Returns the device of each part of a table."""
        return tuple(self.devices[server] for server in table.servers)


def place_tables(
    tables: Sequence[TableSize],
    num_servers: int,
    *,
    layout: Layout = "octaves",
    whole_up_to: int = SMALL_TABLE_BYTES,
) -> Placement:
    """Returns the placement of tables on parameter servers.

    Args:
        tables: their sizes. The result depends on their order only where sizes are equal.
        num_servers: the number of parameter servers, at least 1.
        layout: of tables that are not whole.
        whole_up_to: the bytes up to which a table is whole; so is one with fewer rows than servers.

    Raises:
        InvalidSpec: an argument is outside of its range, or two tables have one name.
    """
    _check(tables, num_servers, layout)
    by_size = sorted(tables, key=lambda table: -table.bytes)
    placed: dict[str, TablePlacement] = {}
    spread = [t for t in by_size if t.bytes > whole_up_to and t.rows >= num_servers > 1]
    for number, table in enumerate(spread):
        # Each table starts on another server, or the most frequent rows of all were on one.
        placed[table.name] = _spread(table, num_servers, layout, number % num_servers)
    load = _bytes_on(num_servers, placed.values())
    for table in by_size:
        if table.name not in placed:
            server = load.index(min(load))
            load[server] += table.bytes
            placed[table.name] = _whole(table, server, layout)
    return Placement(num_servers, {table.name: placed[table.name] for table in tables})


def workers_of_cores(num_cores: int, num_workers: int) -> tuple[int, ...]:
    """Returns the worker of each core: equal numbers of consecutive cores are one worker's.

    Raises InvalidSpec if the workers do not divide the cores.
    """
    if num_workers < 1 or num_cores < 1 or num_cores % num_workers:
        raise errors.InvalidSpec(
            f"{num_cores} cores cannot be spread evenly over {num_workers} workers. Make the "
            "number of cores (TPUConfig.num_shards) a multiple of the number of workers."
        )
    return tuple(core * num_workers // num_cores for core in range(num_cores))


def octaves(rows: int, num_parts: int) -> tuple[tuple[int, int], ...]:
    """Returns the ranges of the layout "octaves", in order: the first row of each and its part."""
    edges = [rows]
    while edges[-1] > 2 * _SMALLEST_PART * num_parts:
        edges.append(edges[-1] // 2)
    edges = [0, *reversed(edges)]
    ranges: list[tuple[int, int]] = []
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        # The first range of an octave is its hottest: the next octave starts on another part.
        turn = number * (num_parts // 2 + 1)
        for position in range(num_parts):
            first = low + (high - low) * position // num_parts
            if not ranges or first > ranges[-1][0]:
                ranges.append((first, (position + turn) % num_parts))
    return tuple(ranges)


def _whole(table: TableSize, server: int, layout: Layout) -> TablePlacement:
    return TablePlacement(table, layout, (server,), (RowRange(0, table.rows, 1, 0),))


def _spread(table: TableSize, num_servers: int, layout: Layout, turn: int) -> TablePlacement:
    servers = tuple((server + turn) % num_servers for server in range(num_servers))
    ranges: tuple[RowRange, ...]
    if layout == "mod":
        counts = sharding.shard_rows(table.rows, num_servers)
        ranges = tuple(RowRange(part, n, num_servers, part) for part, n in enumerate(counts))
    else:
        starts = (
            octaves(table.rows, num_servers)
            if layout == "octaves"
            else tuple(
                (sharding.first_row(part, table.rows, num_servers), part)
                for part in range(num_servers)
            )
        )
        ends = (*(first for first, _ in starts[1:]), table.rows)
        ranges = tuple(
            RowRange(first, end - first, 1, part)
            for (first, part), end in zip(starts, ends, strict=True)
        )
    return TablePlacement(table, layout, servers, ranges)


def _bytes_on(num_servers: int, tables: Iterable[TablePlacement]) -> list[int]:
    load = [0] * num_servers
    for table in tables:
        for server, size in zip(table.servers, table.part_bytes, strict=True):
            load[server] += size
    return load


def _check(tables: Sequence[TableSize], num_servers: int, layout: str) -> None:
    if num_servers < 1:
        raise errors.InvalidSpec(
            f"There must be at least 1 parameter server for the tables, got {num_servers}."
        )
    if layout not in LAYOUTS:
        raise errors.InvalidSpec(f"`layout` must be one of {', '.join(LAYOUTS)}, got {layout!r}.")
    names = [table.name for table in tables]
    for table in tables:
        if table.rows < 1 or table.dim < 1 or table.variables < 1:
            raise errors.InvalidSpec(
                f"Table {table.name!r}: rows, dim and variables must be positive, got {table}."
            )
        if names.count(table.name) > 1:
            raise errors.InvalidSpec(f"Two tables have the name {table.name!r}; rename one.")
