"""The workloads and their batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

EXPONENT = 1.05
"""The exponent of the ids' Zipf distribution: a few rows are in every batch, most are rare."""
BATCHES = 4
"""The number of different batches, which are created first and then repeated."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Float32 tables of equal size, each with one feature, combiner "sum" and Adagrad.

    Attributes:
        most_ids: the number of ids per sample is uniform from 1 to this; 1 means a dense feature.
        ids_below: the bound of ids; None means the number of rows.
    """

    name: str
    tables: int
    rows: int
    dim: int
    batch: int
    most_ids: int
    ids_below: int | None = None

    def described(self) -> str:
        """Describes the workload as text that `find` reads."""
        return ",".join(f"{name}={value}" for name, value in dataclasses.asdict(self).items())


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("multihot", tables=8, rows=1_000_000, dim=64, batch=2048, most_ids=39),
        Workload("onehot", tables=26, rows=100_000, dim=32, batch=4096, most_ids=1),
    )
}

SCALING = Workload("scaling", 4, 100_000, dim=16, batch=2048, most_ids=10, ids_below=100_000)
"""The workload of `benchmarks.scaling`, which varies one size at a time."""


def find(text: str) -> Workload:
    """Finds a workload by its name, or creates it from the text of `described`."""
    if text in WORKLOADS:
        return WORKLOADS[text]
    fields = dict(part.split("=") for part in text.split(","))
    name = fields.pop("name")
    numbers = {key: None if value == "None" else int(value) for key, value in fields.items()}
    return Workload(name, **numbers)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Ids:
    """A batch of one feature: [batch + 1] row splits and [num_ids] ids, both int64."""

    splits: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]


def batches(workload: Workload) -> list[list[Ids]]:
    """Creates the batches of each table. Every call returns the same batches."""
    of_tables = []
    for table in range(workload.tables):
        chance = np.random.default_rng([7, table])
        of_tables.append([_ids(workload, chance) for _ in range(BATCHES)])
    return of_tables


def _ids(workload: Workload, chance: np.random.Generator) -> Ids:
    lengths = chance.integers(1, workload.most_ids + 1, workload.batch)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # The inverse of the distribution function of x^-EXPONENT on [1, below + 1].
    power = 1.0 - EXPONENT
    below = workload.ids_below or workload.rows
    top = (below + 1.0) ** power
    rank = (1.0 + chance.uniform(0, 1, int(splits[-1])) * (top - 1.0)) ** (1.0 / power)
    rank = np.minimum(rank.astype(np.int64) - 1, below - 1)
    # Scatters frequent rows over the table; 2654435761 is prime, so no two ranks collide.
    return Ids(splits, rank * 2654435761 % below)
