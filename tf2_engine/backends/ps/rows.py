"""Routes ids on a core to the servers with their rows, and finds rows in a server's part."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf2_engine.placement import TablePlacement
from tf2_engine.tables import Table
from tf2_engine.types import Array, Tensor


class Routed(NamedTuple):
    """The ids of one core that one part of a table holds, in order: [number of ids] int64.

    `positions` says where they were among all ids, [number of ids] int32. It is None if the part
    holds all ids.
    """

    ids: Tensor
    positions: Tensor | None

    def select(self, rows: Tensor) -> Tensor:
        """Selects this part's rows from rows of all ids."""
        return rows if self.positions is None else tf.gather(rows, self.positions)


def route(placement: TablePlacement, ids: Tensor) -> list[Routed]:
    """Splits ids, [num_ids] int64, by the parts of a table that hold them."""
    if placement.is_whole:
        return [Routed(ids, None)]
    part = tf.cast(_part_of(placement, ids), tf.int32)
    positions = tf.dynamic_partition(tf.range(tf.size(ids)), part, len(placement.servers))
    return [Routed(tf.gather(ids, of_part), of_part) for of_part in positions]


def gathered(routed: list[Routed], rows: list[Tensor]) -> Tensor:
    """Joins rows of all parts in the order of the ids before `route`, [num_ids, dim]."""
    if routed[0].positions is None:
        return rows[0]
    dim = rows[0].shape.as_list()[1]
    return tf.reshape(tf.dynamic_stitch([each.positions for each in routed], rows), [-1, dim])


@dataclasses.dataclass(frozen=True)
class TablePart(Table):
    """The part of a table that one server holds, as a table without the ids of other parts.

    It is updated like a whole table, with ids of the whole table.
    """

    placement: TablePlacement
    part: int

    def gather(self, name: str, ids: Tensor) -> Tensor:
        return tf.gather(self.variables[name][0], self._local_row(ids))

    def core_of(self, ids: Tensor, num_cores: int) -> Tensor:
        # There is one host, which holds all rows.
        return ids % num_cores

    def _by_shard(self, ids: Tensor, *rows: Tensor) -> Iterator[list[Tensor]]:
        yield [self._local_row(ids), *rows]

    def _local_row(self, ids: Tensor) -> Tensor:
        if self.placement.is_whole:
            return ids
        if self.placement.layout == "mod":
            return ids // len(self.placement.servers)
        of_part = self.placement.lines.part == self.part
        first = self.placement.lines.first[of_part]
        shift = first - self.placement.lines.start[of_part]
        if len(first) == 1:
            return ids - tf.constant(shift[0], tf.int64)
        return ids - tf.gather(tf.constant(shift), _last_not_above(first, ids))


def _part_of(placement: TablePlacement, ids: Tensor) -> Tensor:
    if placement.layout == "mod":
        return ids % len(placement.servers)
    lines = placement.lines
    return tf.gather(tf.constant(lines.part), _last_not_above(lines.first, ids))


def _last_not_above(bounds: Array, ids: Tensor) -> Tensor:
    """The position of the last of ascending bounds that is not above each id."""
    ascending = tf.constant(bounds.astype(np.int64))
    return tf.searchsorted(ascending, ids, side="right", out_type=tf.int64) - 1
