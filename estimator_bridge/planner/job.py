"""Describes a program's step to the planner: its tables, and the lookups of a core. Pure."""

from __future__ import annotations

import dataclasses

from estimator_bridge.planner.row_loads import RowLoad
from tf2_engine.placement import TableSize


@dataclasses.dataclass(frozen=True)
class TableLoad:
    """A table, and one core's lookups in it in a step, over all features that use the table.

    Attributes:
        size: rows, dimension and the number of variables: the table and its slots.
        load: which rows are looked up.
        cells: the number of activations [dim] that the core computes from the lookups.
        slots: names of the slots.
        features: for each feature, its number of activations and of ids. If empty, the ids are
            spread evenly over all activations.
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
        samples: the samples of a core in a step.
        source: tells the reader of a report where the loads come from: a sample, or an assumption.
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
        """The ids that a core looks up in a step, in all tables."""
        return sum(table.load.num_occurrences for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(size.bytes for size in self.sizes)
