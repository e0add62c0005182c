"""A step with parameter servers, in TensorFlow's ops: what a core does, and what a server does.

`native_ends` has the same classes for native ops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf2_engine import batch
from tf2_engine.backends.host import kernels
from tf2_engine.backends.host.kernels import OfFeature, tables_of
from tf2_engine.backends.host.update import RowGradients, sum_by_id, update_table
from tf2_engine.backends.interface import Rates
from tf2_engine.backends.ps.messages import (
    Message,
    Messages,
    TableGradients,
    Wire,
    pack_gradients,
    pack_ids,
    pack_rows,
    unpack_gradients,
    unpack_ids,
    unpack_rows,
)
from tf2_engine.batch import KernelColumns, Occurrences
from tf2_engine.placement import FLOAT_BYTES, TablePlacement
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Array, Op, Tensor

_MORE_BYTES = 12
"""The bytes that the form "cells" (see `messages`) adds per id: 8 for the cell, 4 for the gain."""


class Routed(NamedTuple):
    """The ids from one core that belong to one part of a table, in order, [number of ids] int64.

    `positions` are the positions of these ids among all ids of the core, int32, or None if the
    table has only one part.
    """

    ids: Tensor
    positions: Tensor | None

    def select(self, rows: Tensor) -> Tensor:
        return rows if self.positions is None else tf.gather(rows, self.positions)


def route(placement: TablePlacement, ids: Tensor) -> list[Routed]:
    if placement.is_whole:
        return [Routed(ids, None)]
    part = tf.cast(_part_of(placement, ids), tf.int32)
    positions = tf.dynamic_partition(tf.range(tf.size(ids)), part, len(placement.servers))
    return [Routed(tf.gather(ids, of_part), of_part) for of_part in positions]


def gathered(routed: list[Routed], rows: list[Tensor]) -> Tensor:
    if routed[0].positions is None:
        return rows[0]
    dim = rows[0].shape.as_list()[1]
    return tf.reshape(tf.dynamic_stitch([each.positions for each in routed], rows), [-1, dim])


@dataclasses.dataclass(frozen=True)
class TablePart(Table):
    """The part of a table that one server stores.

    The methods take ids of the whole table, but only ids whose rows are in this part.
    """

    placement: TablePlacement
    part: int

    def gather(self, name: str, ids: Tensor) -> Tensor:
        return tf.gather(self.variables[name][0], self._local_row(ids))

    def core_of(self, ids: Tensor, num_cores: int) -> Tensor:
        # There is a single host, which has all rows.
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
    ascending = tf.constant(bounds.astype(np.int64))
    return tf.searchsorted(ascending, ids, side="right", out_type=tf.int64) - 1


class PartOfTable(NamedTuple):
    """A table and the number of one of its parts."""

    table: TablePlan
    part: int

    @property
    def placement(self) -> TablePlacement:
        return placement_of(self.table)

    def of(self, tables: Mapping[str, Table]) -> TablePart:
        whole = tables[self.table.name]
        variables = {name: (parts[self.part],) for name, parts in whole.variables.items()}
        return TablePart(whole.plan, whole.strategy, variables, self.placement, self.part)


_Pair = tuple[Occurrences, Tensor]


class CoreEnd:
    """Does a core's part of a step: requests rows, combines them, and sends gradients."""

    def __init__(self, plan: Plan, servers: int, wire: Wire) -> None:
        self._plan, self._servers, self._wire = plan, servers, wire

    def occurrences(self, features: Sequence[OfFeature]) -> list[Occurrences]:
        return [batch.occurrences(*each, self._plan.out_of_range_ids) for each in features]

    def as_tensors(self, occurrences: Occurrences) -> KernelColumns:
        return occurrences.explicit()

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        return False

    def ask(self, occurrences: Sequence[Occurrences]) -> Asked:
        tables = tables_of(self._plan, [one.feature for one in occurrences])
        return Asked(occurrences, tables, self._on_servers(tables))

    def send(self, occurrences: Sequence[Occurrences], gradients: Sequence[Tensor]) -> Messages:
        pairs = list(zip(occurrences, gradients, strict=True))
        tables = tables_of(self._plan, [one.feature for one in occurrences])
        parts = {
            table.name: self._parts(
                table, [pair for pair in pairs if pair[0].feature.table is table]
            )
            for table in tables
        }
        return {
            server: pack_gradients([parts[table.name][part] for table, part in here])
            for server, here in self._on_servers(tables).items()
        }

    def _on_servers(self, tables: Sequence[TablePlan]) -> dict[int, list[PartOfTable]]:
        here = {server: parts_on(tables, server) for server in range(self._servers)}
        return {server: parts for server, parts in here.items() if parts}

    def _parts(self, table: TablePlan, pairs: Sequence[_Pair]) -> list[TableGradients]:
        wire: Wire = self._wire
        if wire == "smallest" and all(one.cell is None for one, _ in pairs):
            wire = "occurrences"  # Each id has its own cell, so "cells" has as many gradients.
        if wire in ("cells", "smallest"):
            return _by_cells(table, pairs, always=wire == "cells")
        if wire == "summed":
            ids, rows = sum_by_id([kernels.gradients_of_feature(*pair) for pair in pairs])
        else:
            ids = tf.concat([one.ids for one, _ in pairs], 0)
            rows = tf.concat([kernels.row_gradients(*pair) for pair in pairs], 0)
        return [
            TableGradients(part.ids, part.select(rows)) for part in route(placement_of(table), ids)
        ]


class Asked:
    """A lookup of one core that waits for rows. `requests` maps each server to packed ids."""

    def __init__(
        self,
        occurrences: Sequence[Occurrences],
        tables: Sequence[TablePlan],
        here: Mapping[int, Sequence[PartOfTable]],
    ) -> None:
        self._occurrences, self._tables, self._here = occurrences, tables, here
        self.requests = self._requests()

    def _requests(self) -> dict[int, Tensor]:
        self._routed: dict[str, list[Routed]] = {}
        self._positions: dict[str, Iterator[Tensor]] = {}
        for table in self._tables:
            all_ids = [one.ids for one in self._occurrences if one.feature.table is table]
            distinct, position = tf.unique(tf.concat(all_ids, 0), out_idx=tf.int64)
            self._routed[table.name] = route(placement_of(table), distinct)
            sizes = tf.stack([tf.size(ids, out_type=tf.int64) for ids in all_ids])
            self._positions[table.name] = iter(tf.split(position, sizes, num=len(all_ids)))
        return {server: pack_ids(self._ids_of(parts)) for server, parts in self._here.items()}

    def activations(self, answers: Mapping[int, Tensor]) -> list[Tensor]:
        parameters: dict[str, dict[int, Tensor]] = {table.name: {} for table in self._tables}
        for server, parts in self._here.items():
            dims = [table.dim for table, _ in parts]
            rows = unpack_rows(answers[server], self._ids_of(parts), dims)
            for (table, part), of_part in zip(parts, rows, strict=True):
                parameters[table.name][part] = of_part
        whole = {
            name: gathered(self._routed[name], [parts[part] for part in sorted(parts)])
            for name, parts in parameters.items()
        }
        activations = []
        for one in self._occurrences:
            name = one.feature.table.name
            rows = tf.gather(whole[name], next(self._positions[name]))
            activations.append(kernels.combine(rows, one))
        return activations

    def _ids_of(self, parts: Sequence[PartOfTable]) -> list[Tensor]:
        return [self._routed[table.name][part].ids for table, part in parts]


class ServerEnd:
    """Does a server's part of a step: reads the requested rows, and updates rows."""

    def __init__(self, tables: Mapping[str, Table], wire: Wire) -> None:
        self._tables = tables
        self._may_have_cells = wire in ("cells", "smallest")

    def rows(self, here: Sequence[PartOfTable], request: Tensor) -> Tensor:
        wanted = unpack_ids(request, len(here))
        return pack_rows(
            [
                each.of(self._tables).gather(PARAMETERS, ids)
                for each, ids in zip(here, wanted, strict=True)
            ]
        )

    def update(
        self, here: Sequence[PartOfTable], messages: Sequence[Message], rates: Rates
    ) -> list[Op]:
        return self._update_some(here, messages, rates, [table.name for table, _ in here])

    def _update_some(
        self,
        here: Sequence[PartOfTable],
        messages: Sequence[Message],
        rates: Rates,
        names: Container[str],
    ) -> list[Op]:
        dims = [table.dim for table, _ in here]
        by_table: list[list[list[RowGradients]]] = [[] for _ in here]
        for message in messages:
            unpacked = unpack_gradients(message, dims, may_have_cells=self._may_have_cells)
            for per_core, of_core in zip(by_table, unpacked, strict=True):
                per_core.append([of_core])
        ops: list[Op] = []
        for each, per_core in zip(here, by_table, strict=True):
            if each.table.name in names:
                rate = kernels.rate_of(each.table, rates)
                ops += update_table(each.of(self._tables), per_core, rate)
        return ops


def _by_cells(table: TablePlan, pairs: Sequence[_Pair], *, always: bool) -> list[TableGradients]:
    ids, cells_of, gains_of, _ = zip(*(one.explicit() for one, _ in pairs), strict=True)
    gradients = [tf.reshape(gradient, [-1, table.dim]) for _, gradient in pairs]
    counts = [tf.shape(rows, out_type=tf.int64)[0] for rows in gradients]
    first_cells = tf.unstack(tf.cumsum(tf.stack(counts), exclusive=True))
    rows = tf.concat(gradients, 0)
    cells = tf.concat([c + first for c, first in zip(cells_of, first_cells, strict=True)], 0)
    gains = tf.concat(gains_of, 0)
    parts = []
    for part in route(placement_of(table), tf.concat(ids, 0)):
        of_part, gain = part.select(cells), part.select(gains)
        distinct, position = tf.unique(of_part, out_idx=tf.int64)
        count, num_cells = (tf.size(each, out_type=tf.int64) for each in (of_part, distinct))
        row_bytes = FLOAT_BYTES * table.dim
        if always:
            uses_cells = tf.constant(1, tf.int64)
        else:
            smaller = row_bytes * num_cells + _MORE_BYTES * count < row_bytes * count
            uses_cells = tf.cast(smaller, tf.int64)
        # All ids use one form, so one of these two tensors is empty.
        by_cell, by_id = distinct[: num_cells * uses_cells], of_part[: count * (1 - uses_cells)]
        scale = tf.concat([tf.ones_like(by_cell, tf.float32), gain[: count * (1 - uses_cells)]], 0)
        parts.append(
            TableGradients(
                part.ids,
                scale[:, None] * tf.gather(rows, tf.concat([by_cell, by_id], 0)),
                position[: count * uses_cells],
                gain[: count * uses_cells],
                num_cells * uses_cells,
            )
        )
    return parts


def placement_of(table: TablePlan) -> TablePlacement:
    assert table.placement is not None
    return table.placement


def parts_on(tables: Sequence[TablePlan], server: int) -> list[PartOfTable]:
    return [
        PartOfTable(table, placement_of(table).servers.index(server))
        for table in tables
        if server in placement_of(table).servers
    ]
