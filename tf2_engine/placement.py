"""Places rows of tables on parameter servers, and cores on workers.

Small tables are stored whole, the largest first, each on the server with the fewest bytes so far.
The rows of a large table are spread over all servers by one of these layouts:

* "div": one contiguous part per server. Vocabularies are usually sorted by frequency, so the first
  part gets most of the lookups.
* "mod": row `i` is on server `i % n`. The load is even, but no part is contiguous in a checkpoint.
* "octaves": a table of V rows is divided into ranges [V / 2^(j+1), V / 2^j). Each range is cut into
  `n` contiguous parts, one per server. The server of a range's first part changes from range to
  range. The load is as even as with "mod".
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
"""By default, tables up to this size are not spread: a batch reads most of their rows anyway."""

_SMALLEST_PART = 2
"""The first octave is the smallest. Each of its parts has at least this number of rows."""


@dataclasses.dataclass(frozen=True)
class TableSize:
    """The size of a table. `variables` counts parameters and slots, each [rows, dim] float32."""

    name: str
    rows: int
    dim: int
    variables: int = 1

    @property
    def row_bytes(self) -> int:
        return self.variables * self.dim * FLOAT_BYTES

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


class RowRange(NamedTuple):
    """The rows `first`, `first + step`, ... of a table; `rows` is their number.

    These rows belong to part `part`, which is on server `TablePlacement.servers[part]`.
    """

    first: int
    rows: int
    step: int
    part: int


@dataclasses.dataclass(frozen=True)
class TablePlacement:
    """The parts of one table: part `k` is a variable on parameter server `servers[k]`.

    The ranges are sorted by their first rows. Each row is in exactly one range.
    """

    size: TableSize
    layout: Layout
    servers: tuple[int, ...]
    ranges: tuple[RowRange, ...]

    @property
    def is_whole(self) -> bool:
        return len(self.servers) == 1

    @functools.cached_property
    def part_rows(self) -> tuple[int, ...]:
        rows = [0] * len(self.servers)
        for row_range in self.ranges:
            rows[row_range.part] += row_range.rows
        return tuple(rows)

    @property
    def part_bytes(self) -> tuple[int, ...]:
        return tuple(rows * self.size.row_bytes for rows in self.part_rows)

    def ranges_of(self, part: int) -> tuple[RowRange, ...]:
        return tuple(row_range for row_range in self.ranges if row_range.part == part)

    def part_of(self, ids: Array) -> Array:
        if self.layout == "mod" and not self.is_whole:
            return ids % len(self.servers)
        return self.lines.part[np.searchsorted(self.lines.first, ids, side="right") - 1]

    @functools.cached_property
    def lines(self) -> RowLines:
        starts, filled = [], [0] * len(self.servers)
        for row_range in self.ranges:
            starts.append(filled[row_range.part])
            filled[row_range.part] += row_range.rows
        first, _, step, part = (
            np.array(column, np.int64) for column in zip(*self.ranges, strict=True)
        )
        return RowLines(first, step, part, np.array(starts, np.int64))


class RowLines(NamedTuple):
    """The row ranges of a table, sorted by `first`. Each attribute is [number of ranges] int64.

    With "mod", an id is in the range `id % number of parts`. Otherwise, it is in the last range
    whose `first` is at most the id. Its row within the part is `(id - first) // step + start`.
    """

    first: Array
    step: Array
    part: Array
    start: Array


@dataclasses.dataclass(frozen=True)
class Placement:
    """Maps each table's name to the table's placement on `num_servers` parameter servers."""

    num_servers: int
    tables: Mapping[str, TablePlacement]

    @property
    def server_bytes(self) -> tuple[int, ...]:
        return tuple(_bytes_on(self.num_servers, self.tables.values()))

    def tables_of(self, server: int) -> dict[str, int]:
        return {
            name: table.servers.index(server)
            for name, table in self.tables.items()
            if server in table.servers
        }


@dataclasses.dataclass(frozen=True)
class Servers:
    """The devices of the parameter servers, and how tables are spread over them."""

    devices: tuple[str, ...]
    layout: Layout = "div"
    whole_up_to: int = SMALL_TABLE_BYTES

    def place(self, tables: Sequence[TableSize]) -> Placement:
        return place_tables(
            tables, len(self.devices), layout=self.layout, whole_up_to=self.whole_up_to
        )

    def devices_of(self, table: TablePlacement) -> tuple[str, ...]:
        return tuple(self.devices[server] for server in table.servers)


def place_tables(
    tables: Sequence[TableSize],
    num_servers: int,
    *,
    layout: Layout = "octaves",
    whole_up_to: int = SMALL_TABLE_BYTES,
) -> Placement:
    """Places tables on parameter servers.

    Args:
        layout: the layout of tables that are spread over servers.
        whole_up_to: tables of at most this many bytes, or with fewer rows than servers, are not
            spread.
    """
    _check(tables, num_servers, layout)
    by_size = sorted(tables, key=lambda table: -table.bytes)
    placed: dict[str, TablePlacement] = {}
    spread = [t for t in by_size if t.bytes > whole_up_to and t.rows >= num_servers > 1]
    for number, table in enumerate(spread):
        # Each table starts on a different server, so that their most frequent rows are not all on
        # one server.
        placed[table.name] = _spread(table, num_servers, layout, number % num_servers)
    load = _bytes_on(num_servers, placed.values())
    for table in by_size:
        if table.name not in placed:
            server = load.index(min(load))
            load[server] += table.bytes
            placed[table.name] = _whole(table, server, layout)
    return Placement(num_servers, {table.name: placed[table.name] for table in tables})


def workers_of_cores(num_cores: int, num_workers: int) -> tuple[int, ...]:
    if num_workers < 1 or num_cores < 1 or num_cores % num_workers:
        raise errors.InvalidSpec(
            f"{num_cores} cores cannot be spread evenly over {num_workers} workers. Make the "
            "number of cores (TPUConfig.num_shards) a multiple of the number of workers."
        )
    return tuple(core * num_workers // num_cores for core in range(num_cores))


def octaves(rows: int, num_parts: int) -> tuple[tuple[int, int], ...]:
    edges = [rows]
    while edges[-1] > 2 * _SMALLEST_PART * num_parts:
        edges.append(edges[-1] // 2)
    edges = [0, *reversed(edges)]
    ranges: list[tuple[int, int]] = []
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        # The first range of an octave has the most frequent rows, so the next octave starts with a
        # different part.
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
