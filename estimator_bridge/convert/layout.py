"""Which row of a stored table belongs to which id."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tf2_engine import sharding


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a table's rows lie in a name-based checkpoint: host after host.

    With "div" that is the order of the ids. With "mod" host h of H holds the ids h, h + H, ..., so
    the stored tensor is a permutation that depends on H.

    Attributes:
        rows: the vocabulary.
        hosts: of the writer; of those without a row there is nothing in the file.
        strategy: "div" or "mod".
    """

    rows: int
    hosts: int = 1
    strategy: str = "div"

    @property
    def parts(self) -> int:
        """How many hosts hold rows."""
        return min(self.rows, self.hosts)

    @property
    def part_rows(self) -> tuple[int, ...]:
        """How many rows each of them holds."""
        return sharding.shard_rows(self.rows, self.parts)

    def ids(self, stored: Any) -> Any:
        """Returns the ids, [n] int64, of rows as they are stored, [n] int64."""
        part = sharding.shard_of(stored, self.rows, self.parts, "div")
        local = stored - sharding.first_row(part, self.rows, self.parts)
        return sharding.global_id(part, local, self.rows, self.parts, self.strategy)

    def stored(self, ids: Any) -> Any:
        """Returns where rows are stored, [n] int64, from their ids, [n] int64."""
        part = sharding.shard_of(ids, self.rows, self.parts, self.strategy, np.maximum)
        local = sharding.local_row(ids, self.rows, self.parts, self.strategy)
        return sharding.first_row(part, self.rows, self.parts) + local

    def __str__(self) -> str:
        if self.parts == 1:
            return "rows by id"
        return f"{self.strategy} on {self.hosts} hosts"
