"""Creates random tables and random numbers of SparseCores, for tests of layouts."""

from __future__ import annotations

import numpy as np

from tf2_engine.sparsecore_layout import SparseCores, StackableTable


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
