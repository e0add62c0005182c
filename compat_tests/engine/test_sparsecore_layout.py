"""Which tables share a stack on SparseCores, and the buffers that batches need, by hand.

test_sparsecore_layout_beside_stock.py compares layouts with those of stock.
"""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.support.sparsecore_tables import random_sparse_cores, random_tables
from tf2_engine import errors
from tf2_engine.sparsecore_layout import (
    SparseCores,
    StackableTable,
    TableLayout,
    stacks_of,
    table_layouts,
)
from tf2_engine.sparsecore_limits import Lookup, Need, needs


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


# Buffers.

TWO = (StackableTable("a", 10, 6), StackableTable("b", 7, 6))


def layouts(cores: int = 1, per_core: int = 4) -> dict[str, TableLayout]:
    """Returns the layouts of both tables, which share a stack."""
    return table_layouts(TWO, SparseCores(cores, per_core))


def one_id_each(feature: str, table: str, ids: list[int]) -> Lookup:
    """Returns a lookup of one id per activation."""
    return Lookup(feature, table, len(ids), np.arange(len(ids)), np.array(ids))


@pytest.mark.parametrize("cores", [1, 2])
def test_two_tables_in_a_stack(cores: int) -> None:
    """Ids 0 to 15 of `a` modulo 10 and of `b` modulo 7 need 3 ids, and 3 different ones.

    On one core of four SparseCores the second has 4, 5, 6, 7 of `a` and 4, 5, 6, 0 of `b`, of
    which 4, 4 and 0 go to the first partition. The numbers are stock's.
    """
    a = one_id_each("x", "a", [number % 10 for number in range(16)])
    b = one_id_each("y", "b", [number % 7 for number in range(16)])
    need = needs(layouts(cores), [a, b])["a_b"]

    assert (need.ids, need.unique_ids, need.cells) == (3, 3, 32)


def test_padding_of_partitions() -> None:
    """One id per activation, 0 to 15 modulo 10: each of 14 filled partitions takes room for 8."""
    need = needs(layouts(), [one_id_each("x", "a", [number % 10 for number in range(16)])])["a_b"]

    # Of the SparseCores the third has 8, 9, 0, 1, and so two partitions of two ids.
    assert need == Need(ids=2, unique_ids=2, buffer=14 * 8, cells=16)
    assert need.ids_per_sample == 7


def test_an_id_twice_in_an_activation_counts_once() -> None:
    """Occurrences of an activation are merged; features of one table share its different ids."""
    twice = Lookup("x", "a", 4, np.array([0, 0, 0, 1]), np.array([8, 8, 4, 8]))
    again = Lookup("y", "a", 4, np.array([0]), np.array([8]))

    # On the first SparseCore: 8 and 4 of x, 8 of y.
    assert needs(layouts(), [twice, again])["a_b"] == Need(3, 2, 8 + 8, 8)
    assert needs(layouts(), [twice])["a_b"] == Need(2, 2, 8 + 8, 4)


def test_enough_for_both() -> None:
    """What is enough for two batches is the larger of each number."""
    assert Need(3, 1, 64, 8) | Need(2, 2, 128, 8) == Need(3, 2, 128, 8)


def test_activations_that_do_not_divide() -> None:
    """A batch that the SparseCores of a core cannot share is refused, with the next that works."""
    with pytest.raises(errors.InvalidSpec, match=r"'x' has 6 activations.* 4 SparseCores.* is 8\."):
        needs(layouts(), [one_id_each("x", "a", [0] * 6)])
