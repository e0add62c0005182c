"""Describes a program's step to the planner: its tables, and the lookups of a core. Pure."""

from __future__ import annotations

import dataclasses

from estimator_bridge.planner.row_loads import RowLoad
from tf2_engine.placement import TableSize


@dataclasses.dataclass(frozen=True)
class TableLoad:
    """A table, and the lookups of one core in a step, of all features that use the table.

    Attributes:
        size: rows, dim and the number of variables: the table and its slots.
        load: which rows are looked up.
        cells: activations [dim] that the lookups of the core are combined to.
        slots: names of the slots.
        features: for each feature its activations, and the ids that these are combined of;
            without, every activation has as many ids as the others.
    """

    size: TableSize
    load: RowLoad
    cells: float
    slots: tuple[str, ...] = ()
    features: tuple[tuple[float, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Job:
    """A training as a cluster sees it.

    Attributes:
        subject: what reports call it.
        samples: the samples of a core in a step.
        source: where the loads come from, for people: a sample, or an assumption.
    """

    subject: str
    tables: tuple[TableLoad, ...]
    samples: int
    source: str

    @property
    def sizes(self) -> tuple[TableSize, ...]:
        """The sizes of the tables."""
        return tuple(table.size for table in self.tables)

    @property
    def ids(self) -> float:
        """The ids that a core looks up in a step, of all tables."""
        return sum(table.load.num_occurrences for table in self.tables)

    @property
    def bytes(self) -> int:
        """The bytes of all tables and slots."""
        return sum(size.bytes for size in self.sizes)
