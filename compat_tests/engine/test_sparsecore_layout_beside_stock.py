"""Layouts of tables on SparseCores, compared with the stacker of stock's TPUEmbeddingV2."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.support import stock_layouts
from compat_tests.support.sparsecore_tables import random_sparse_cores, random_tables, stacked
from tf2_engine.sparsecore_layout import TableLayout, stacks_of, table_layouts
from tf2_engine.types import Message


@pytest.mark.parametrize("sets", [50, pytest.param(1000, marks=pytest.mark.full)])
def test_layouts_are_those_of_stock(sets: int) -> None:
    """For random tables every field of a layout, and a stack's values, are those of stock."""
    for seed in range(sets):
        rng = np.random.default_rng(seed)
        tables, sparse_cores = random_tables(rng), random_sparse_cores(rng)
        stacking = bool(rng.integers(5))
        layouts = table_layouts(tables, sparse_cores, stacking=stacking)
        protos = stock_layouts.layouts(tables, sparse_cores, stacking=stacking)
        for layout in layouts.values():
            assert fields(layout) == stock_fields(protos[layout.table]), (seed, layout)
        for stack in stacks_of(layouts.values()).values():
            values = {each.table: rng.normal(size=(each.rows, each.dim)) for each in stack}
            expected = stock_layouts.stacked(
                [values[each.table] for each in stack], [protos[each.table] for each in stack]
            )
            assert np.array_equal(stacked(stack, values), expected), (seed, stack[0].stack)


def fields(layout: TableLayout) -> tuple[object, ...]:
    """Returns what stock's proto says, of our layout."""
    return (
        layout.stack,
        layout.sparse_cores.total,
        layout.sparse_cores.cores,
        layout.stack_rows,
        [layout.rows, layout.dim],
        [layout.padded_rows, layout.padded_dim],
        layout.row_offset,
        layout.rotation,
        layout.samples_per_sparse_core,
        layout.features,
    )


def stock_fields(proto: Message) -> tuple[object, ...]:
    return (
        proto.stacked_table_name,
        proto.num_sparse_cores,
        proto.num_partitions,
        proto.total_rows_per_sparse_core_shard,
        list(proto.unsharded_shape),
        list(proto.unsharded_padded_shape),
        proto.sparse_core_shard_row_offset,
        proto.sparse_core_shard_rotation,
        proto.per_sparse_core_batch_size,
        proto.num_features,
    )
