"""The order in which a name-based checkpoint stores the rows of a table."""

from __future__ import annotations

import dataclasses

import numpy as np

from tf2_engine import sharding
from tf2_engine.types import Array


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """The order of a table's rows: host after host.

    With "div" that is the order of the ids. With "mod" host h of H holds the ids h, h + H, ..., so
    the stored tensor is a permutation that depends on H.

    Attributes:
        rows: the vocabulary.
        hosts: the hosts of the writer; those without a row have nothing in the file.
        strategy: "div" or "mod".
    """

    rows: int
    hosts: int = 1
    strategy: str = "div"

    @property
    def parts(self) -> int:
        """The number of hosts that hold rows."""
        return min(self.rows, self.hosts)

    @property
    def part_rows(self) -> tuple[int, ...]:
        """The number of rows of each host that holds any."""
        return sharding.shard_rows(self.rows, self.parts)

    def ids(self, stored: Array) -> Array:
        """Returns the ids, [n] int64, of rows by their places in the file, [n] int64."""
        part = sharding.shard_of(stored, self.rows, self.parts, "div")
        local = stored - sharding.first_row(part, self.rows, self.parts)
        return sharding.global_id(part, local, self.rows, self.parts, self.strategy)

    def stored(self, ids: Array) -> Array:
        """Returns the places of rows in the file, [n] int64, by their ids, [n] int64."""
        part = sharding.shard_of(ids, self.rows, self.parts, self.strategy, np.maximum)
        local = sharding.local_row(ids, self.rows, self.parts, self.strategy)
        return sharding.first_row(part, self.rows, self.parts) + local

    def __str__(self) -> str:
        if self.parts == 1:
            return "rows by id"
        return f"{self.strategy} on {self.hosts} hosts"
