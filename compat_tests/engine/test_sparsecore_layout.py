"""Layouts of tables on SparseCores, compared with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.support.sparsecore_tables import random_sparse_cores, random_tables, stacked
from tf2_engine import errors
from tf2_engine.sparsecore_layout import (
    SparseCores,
    StackableTable,
    stacks_of,
    table_layouts,
)

TWO = (StackableTable("a", 10, 6), StackableTable("b", 7, 6))
BY_ONE_CORE = {0: 8, 1: 24, 2: 40, 3: 56, 4: 9, 5: 25, 6: 41}
BY_TWO_CORES = {0: 40, 1: 56, 2: 8, 3: 24, 4: 41, 5: 57, 6: 9}


@pytest.mark.parametrize(
    "sparse_cores, rows_of_b",
    [(SparseCores(1, 4), BY_ONE_CORE), (SparseCores(2, 2), BY_TWO_CORES)],
    ids=str,
)
def test_two_tables_on_four_sparse_cores(
    sparse_cores: SparseCores, rows_of_b: dict[int, int]
) -> None:
    """Tables of 10×6 and 7×6 become one stack [64, 8]; the second is rotated if cores are two."""
    layouts = table_layouts(TWO, sparse_cores)
    a, b = layouts["a"], layouts["b"]

    assert (a.stack, a.stack_shape, a.padded_rows, a.padded_dim) == ("a_b", (64, 8), 32, 8)
    assert (a.row_offset, a.rotation, b.row_offset) == (0, 0, 8)
    assert a.stored(np.arange(10)).tolist() == [0, 16, 32, 48, 1, 17, 33, 49, 2, 18]
    assert b.stored(np.arange(7)).tolist() == list(rows_of_b.values())


def test_two_tables_on_eight_sparse_cores() -> None:
    """On two cores of four SparseCores row 0 of the second table is row 8 of the second core."""
    layouts = table_layouts(TWO, SparseCores(2, 4))
    b = layouts["b"]

    assert (b.stack_shape, b.padded_rows, b.row_offset, b.rotation) == ((128, 8), 64, 8, 4)
    assert b.shard(np.arange(9)).tolist() == [4, 5, 6, 7, 0, 1, 2, 3, 4]
    assert b.row_in_shard(np.arange(9)).tolist() == [8] * 8 + [9]
    assert b.stored(np.array([0])).tolist() == [72]


def test_padding_is_filled_and_left_out() -> None:
    """A stack holds each row of each table once, and the padding everywhere else."""
    layouts = stacks_of(table_layouts(TWO, SparseCores(2, 2)).values())["a_b"]
    tables = {t.name: np.arange(t.rows * t.dim, dtype=np.float32).reshape(-1, t.dim) for t in TWO}
    stack = stacked(layouts, tables, padding=-1)

    assert np.count_nonzero(stack != -1) == 10 * 6 + 7 * 6
    assert np.array_equal(stack[40, :6], tables["b"][0])
    assert np.array_equal(stack[40, 6:], [-1, -1])
    for layout in layouts:
        rows = stack[layout.stored(np.arange(layout.rows)), : layout.dim]
        np.testing.assert_array_equal(rows, tables[layout.table])


@pytest.mark.parametrize(
    "one, other",
    [
        (StackableTable("a", 8, 8), StackableTable("b", 8, 9)),  # padded to 8 and 16 columns
        (StackableTable("a", 8, 8, group="sgd"), StackableTable("b", 8, 8, group="adam")),
        (
            StackableTable("a", 8, 8, samples=4 * 2**15),  # activations of 1 MiB per SparseCore
            StackableTable("b", 8, 8, samples=4 * 2**15),
        ),
        (StackableTable("a", 2**25, 8), StackableTable("b", 2**25, 8)),  # variables of 1 GiB
    ],
)
def test_tables_that_do_not_share_a_stack(one: StackableTable, other: StackableTable) -> None:
    """Tables of other widths or groups share no stack, nor do tables beyond the size limits."""
    assert set(stacks_of(table_layouts([one, other], SparseCores(1, 4)).values())) == {"a", "b"}


@pytest.mark.parametrize("cores, per_core", [(3, 4), (1, 3), (0, 4), (6, 2)])
def test_no_power_of_two(cores: int, per_core: int) -> None:
    """A number of SparseCores that no job can have is refused, with the numbers that work."""
    with pytest.raises(errors.InvalidSpec, match=rf"{cores * per_core}: .*must be a power of two"):
        SparseCores(cores, per_core)


def test_stacks_of_one_name() -> None:
    """Two stacks whose names are the same are refused by their tables."""
    tables = [
        StackableTable("a", 8, 8, group=1),
        StackableTable("b_c", 8, 8, group=1),
        StackableTable("a_b", 8, 8, group=2),
        StackableTable("c", 8, 8, group=2),
    ]
    with pytest.raises(errors.InvalidSpec, match=r"\['a', 'b_c'\] and \['a_b', 'c'\].*'a_b_c'"):
        table_layouts(tables, SparseCores(1, 4))
    with pytest.raises(errors.InvalidSpec, match="Two tables have the name 'a'"):
        table_layouts([tables[0], tables[0]], SparseCores(1, 4))


def test_stored_rows_have_one_id() -> None:
    """Each row of a stack is a row, or a row of padding, of exactly one table, and leads back."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        layouts = table_layouts(random_tables(rng), random_sparse_cores(rng))
        for stack in stacks_of(layouts.values()).values():
            stored = np.arange(stack[0].stack_shape[0])
            ids = np.array([layout.ids(stored) for layout in stack])
            assert np.all(np.count_nonzero(ids >= 0, axis=0) == 1), seed
            for layout, ids_of_table in zip(stack, ids, strict=True):
                assert sorted(ids_of_table[ids_of_table >= 0]) == list(range(layout.padded_rows)), (
                    layout
                )
                assert np.array_equal(
                    layout.stored(ids_of_table[ids_of_table >= 0]), stored[ids_of_table >= 0]
                ), layout
