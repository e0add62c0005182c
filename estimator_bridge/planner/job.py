"""The tables of a training step, and one core's lookups in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from estimator_bridge import errors
from tf2_engine.placement import TableSize
from tf2_engine.types import Array

ZIPF = 1.05
"""The exponent of the Zipf law that is assumed if there is no sample of the data."""

_SINGLE = 1 << 13
"""How many of the most frequent rows are counted one by one; all others are counted in groups."""

_GROUPS = 1 << 13


@dataclasses.dataclass(frozen=True)
class RowLoad:
    """The lookups of one core in one step, in groups of neighbouring rows.

    Attributes:
        rows: one row that represents each group, int64 [groups].
        widths: how many rows each group has, float64 [groups].
        distinct: how many different rows are looked up on average, float64 [groups].
        occurrences: how many lookups each group gets, float64 [groups].
    """

    rows: Array
    widths: Array
    distinct: Array
    occurrences: Array

    @property
    def num_distinct(self) -> float:
        return float(self.distinct.sum())

    @property
    def num_occurrences(self) -> float:
        return float(self.occurrences.sum())

    def of_cores(self, cores: int) -> Array:
        """Computes how many different rows of each group several cores look up, [groups]."""
        share = np.minimum(self.distinct / self.widths, 1.0)
        together: Array = self.widths * -np.expm1(cores * np.log1p(-np.minimum(share, 1 - 1e-16)))
        return together


def sampled_load(num_rows: int, ids: Sequence[Array]) -> RowLoad:
    """Counts the lookups in a data sample; ids outside the table are ignored.

    Each array of `ids`, [number of ids] int, has one core's ids in one step.
    """
    steps = max(len(ids), 1)
    known = [part[(part >= 0) & (part < num_rows)].astype(np.int64) for part in ids]
    every = np.concatenate([np.unique(part) for part in known] or [np.zeros(0, np.int64)])
    rows, seen = np.unique(every, return_counts=True)
    _, times = np.unique(np.concatenate(known or [rows]), return_counts=True)
    return RowLoad(rows, np.ones(len(rows)), seen / steps, times / steps)


def zipf_load(num_rows: int, occurrences: float, exponent: float = ZIPF) -> RowLoad:
    """Computes the expected load if row k is drawn with a probability ~ (k + 1)^-exponent.

    This fits vocabularies that are sorted by frequency.

    Raises:
        InvalidInput: the exponent is negative.
    """
    if exponent < 0:
        raise errors.InvalidInput(
            f"The exponent of the Zipf law is {exponent}; it must be 0 or more."
        )
    edges = _edges(num_rows)
    widths = np.diff(edges).astype(np.float64)
    # The middle row represents its group, whose size is less than 0.3 % of the rows before it.
    middle = (edges[:-1] + edges[1:] + 1) / 2
    frequency = middle**-exponent
    frequency /= (frequency * widths).sum()
    distinct = widths * -np.expm1(occurrences * np.log1p(-np.minimum(frequency, 1 - 1e-16)))
    # A random row of each group decides where the group is placed. Rows at a constant distance
    # would all be in the same parts of the layout "mod".
    offset = np.random.default_rng(0).random(len(widths))
    rows = edges[:-1] + (offset * widths).astype(np.int64)
    return RowLoad(rows, widths, distinct, occurrences * frequency * widths)


def _edges(num_rows: int) -> Array:
    single = np.arange(min(num_rows, _SINGLE) + 1, dtype=np.int64)
    if num_rows <= _SINGLE:
        return single
    groups = np.geomspace(_SINGLE, num_rows, _GROUPS).round().astype(np.int64)
    edges: Array = np.unique(np.concatenate([single, groups]))
    return edges


@dataclasses.dataclass(frozen=True)
class TableLoad:
    """A table, and one core's lookups in it per step.

    Attributes:
        size: rows, dimension, and the number of variables (1 for the table, and 1 for each slot).
        cells: the number of activations [dim] that the core computes from the lookups.
        features: for each feature, its number of activations and its number of ids. If empty, the
            ids are spread evenly over all activations.
    """

    size: TableSize
    load: RowLoad
    cells: float
    slots: tuple[str, ...] = ()
    features: tuple[tuple[float, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Job:
    """A training job as the planner sees it.

    Attributes:
        subject: the name used in reports.
        samples: the number of samples per core and step.
        source: where the loads come from, for reports.
    """

    subject: str
    tables: tuple[TableLoad, ...]
    samples: int
    source: str

    @property
    def sizes(self) -> tuple[TableSize, ...]:
        return tuple(table.size for table in self.tables)

    @property
    def ids(self) -> float:
        return sum(table.load.num_occurrences for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(size.bytes for size in self.sizes)
