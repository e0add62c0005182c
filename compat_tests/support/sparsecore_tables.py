"""Creates random tables, random numbers of SparseCores, and the stacks of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tf2_engine.sparsecore_layout import SparseCores, StackableTable, TableLayout
from tf2_engine.types import Array


def random_tables(rng: np.random.Generator) -> list[StackableTable]:
    """Creates 1 to 9 tables; some of their features have activations that fill a stack."""
    return [
        StackableTable(
            f"t{rng.integers(1000)}_{number}",
            int(rng.integers(1, 501)),
            int(rng.integers(1, 41)),
            group="ab"[rng.integers(2)],
            samples=int(rng.integers(0, 5) * rng.choice([3, 4096, 2**16])),
            features=int(rng.integers(0, 4)),
        )
        for number in range(rng.integers(1, 10))
    ]


def random_sparse_cores(rng: np.random.Generator) -> SparseCores:
    per_core = 2 ** int(rng.integers(0, 3))
    return SparseCores(2 ** int(rng.integers(0, 7)) // per_core or 1, per_core)


def stacked(
    layouts: Sequence[TableLayout], tables: Mapping[str, Array], padding: float = 0.0
) -> Array:
    """Builds the stack of a checkpoint, with shape `stack_shape`, from tables [rows, dim].

    For a slot, `padding` must be its initial value: Adagrad would compute NaN from zeros.
    """
    values = np.full(layouts[0].stack_shape, padding, tables[layouts[0].table].dtype)
    for layout in layouts:
        values[layout.stored(np.arange(layout.rows)), : layout.dim] = tables[layout.table]
    return values
