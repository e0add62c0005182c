"""The placement of tables on parameter servers: pure functions, whose properties are checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compat_tests.support.placements import ids_of
from tf2_engine import errors
from tf2_engine.placement import (
    LAYOUTS,
    Layout,
    TablePlacement,
    TableSize,
    place_tables,
    workers_of_cores,
)

SERVERS = st.integers(1, 9)


def _place(rows: int, servers: int, layout: Layout) -> TablePlacement:
    """Returns the placement of a table that is too large to be whole."""
    placement = place_tables([TableSize("t", rows, 4)], servers, layout=layout, whole_up_to=0)
    return placement.tables["t"]


@settings(derandomize=True, max_examples=100, deadline=None)
@given(rows=st.integers(1, 400), servers=SERVERS, layout=st.sampled_from(LAYOUTS))
def test_every_row_has_one_place(rows: int, servers: int, layout: Layout) -> None:
    """Parts hold every id once; `part_of` and `lines` say where."""
    table = _place(rows, servers, layout)
    ids = np.arange(rows)
    parts, lines = table.part_of(ids), table.lines
    is_by_mod = layout == "mod" and not table.is_whole
    line = parts if is_by_mod else np.searchsorted(lines.first, ids, side="right") - 1
    local = (ids - lines.first[line]) // lines.step[line] + lines.start[line]

    ids_of_parts = [ids_of(table, part) for part in range(len(table.servers))]
    assert sorted(np.concatenate(ids_of_parts).tolist()) == ids.tolist()
    for part, of_part in enumerate(ids_of_parts):
        assert table.part_rows[part] == len(of_part)
        assert parts[of_part].tolist() == [part] * len(of_part)
        assert local[of_part].tolist() == list(range(len(of_part)))
    assert len(set(table.servers)) == len(table.servers) == (servers if rows >= servers else 1)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(rows=st.integers(1, 4000), servers=SERVERS)
def test_ranges_are_slices_of_a_checkpoint(rows: int, servers: int) -> None:
    """The ranges of div and octaves are contiguous, and one begins where another ends."""
    for layout in ("div", "octaves"):
        table = _place(rows, servers, layout)
        end = 0
        for row_range in table.ranges:
            assert (row_range.first, row_range.step) == (end, 1)
            assert row_range.rows > 0
            end += row_range.rows
        assert end == rows


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 64)), min_size=1, max_size=12),
    servers=SERVERS,
    layout=st.sampled_from(LAYOUTS),
    whole_up_to=st.sampled_from([0, 20_000, 1 << 30]),
)
def test_memory_is_even(
    sizes: Sequence[tuple[int, int]], servers: int, layout: Layout, whole_up_to: int
) -> None:
    """The fullest server exceeds the mean by the largest whole table and the rounding of parts."""
    tables = [TableSize(f"t{n}", rows, dim, 2) for n, (rows, dim) in enumerate(sizes)]
    placement = place_tables(tables, servers, layout=layout, whole_up_to=whole_up_to)

    assert sum(placement.server_bytes) == sum(table.bytes for table in tables)
    whole = [table.size.bytes for table in placement.tables.values() if table.is_whole]
    # A part of div and mod has at most one row more than another; one of octaves one per octave.
    rounding = sum(
        table.size.row_bytes * max(table.part_rows) - table.size.bytes / servers
        for table in placement.tables.values()
        if not table.is_whole
    )
    mean = sum(placement.server_bytes) / servers
    assert max(placement.server_bytes) <= mean + max(whole, default=0) + rounding
    for table in placement.tables.values():
        small = table.size.bytes <= whole_up_to or table.size.rows < servers
        assert table.is_whole == (small or servers == 1)
        octave_count = len(table.ranges) / len(table.servers)
        slack = octave_count + 1 if layout == "octaves" else 1
        assert max(table.part_rows) - min(table.part_rows) <= slack


@pytest.mark.parametrize("exponent", [1.05, 1.2])
def test_octaves_are_even_for_sorted_vocabularies(exponent: float) -> None:
    """On 8 servers the busiest looks up at most 1.15 of the mean, where div has over 5 times it."""
    rng = np.random.default_rng(0)
    ids = rng.zipf(exponent, 100_000) - 1
    rows = np.unique(ids[ids < 1_000_000][:8192])
    busiest = {}
    for layout in LAYOUTS:
        table = _place(1_000_000, 8, layout)
        counts = np.bincount(table.part_of(rows), minlength=8)
        busiest[layout] = counts.max() / counts.mean()
    assert busiest["octaves"] <= 1.15
    assert busiest["mod"] <= 1.15
    assert busiest["div"] > 5


def test_small_tables_are_whole_on_the_emptiest() -> None:
    """The largest of the small goes to the emptiest server, and equal ones in their order."""
    tables = [TableSize(name, rows, 1) for name, rows in zip("abcd", (10, 30, 20, 30), strict=True)]
    placement = place_tables(tables, 2)
    assert {name: table.servers for name, table in placement.tables.items()} == {
        "a": (1,),
        "b": (0,),
        "c": (0,),
        "d": (1,),
    }
    assert list(placement.tables) == ["a", "b", "c", "d"]
    assert placement.server_bytes == (200, 160)
    assert placement.tables_of(1) == {"a": 0, "d": 0}


def test_large_tables_start_on_different_servers() -> None:
    """The hottest rows of several tables, which are their first, are not all on one server."""
    tables = [TableSize(f"t{n}", 1000, 1) for n in range(4)]
    for layout in LAYOUTS:
        placement = place_tables(tables, 4, layout=layout, whole_up_to=0)
        hottest = {
            table.servers[int(table.part_of(np.array(0)))] for table in placement.tables.values()
        }
        assert len(hottest) == 4


def test_cores_of_workers() -> None:
    """Each worker has equally many consecutive cores; what cannot be so is refused by numbers."""
    assert workers_of_cores(4, 2) == (0, 0, 1, 1)
    assert workers_of_cores(3, 3) == (0, 1, 2)
    assert workers_of_cores(2, 1) == (0, 0)
    with pytest.raises(errors.InvalidSpec, match="3 cores cannot be spread evenly over 2 workers"):
        workers_of_cores(3, 2)


@pytest.mark.parametrize(
    "tables, servers, layout, message",
    [
        ([TableSize("t", 1, 1)], 0, "div", "at least 1 parameter server"),
        ([TableSize("t", 0, 1)], 1, "div", "Table 't'"),
        ([TableSize("t", 1, 1)] * 2, 1, "div", "Two tables have the name 't'"),
        ([TableSize("t", 1, 1)], 1, "rows", "`layout` must be one of div, mod, octaves"),
    ],
)
def test_what_is_refused(
    tables: Sequence[TableSize], servers: int, layout: Layout, message: str
) -> None:
    with pytest.raises(errors.InvalidSpec, match=message):
        place_tables(tables, servers, layout=layout)
