"""Layouts of tables on SparseCores, compared with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.support.sparsecore_tables import random_sparse_cores, random_tables
from tf2_engine import errors
from tf2_engine.sparsecore_layout import (
    SparseCores,
    StackableTable,
    stacks_of,
    table_layouts,
)


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
