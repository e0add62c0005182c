"""The two ends of a step with parameter servers, the core's and the server's, on TensorFlow's ops.

`native_ends` has both on native ops.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import batch
from tf2_engine.backends.host import kernels
from tf2_engine.backends.host.kernels import Raw, Read, Sent, tables_of
from tf2_engine.backends.host.update import Contribution, sum_by_id, update_table
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
from tf2_engine.backends.ps.rows import Routed, TablePart, gathered, route
from tf2_engine.batch import Occurrences, OccurrenceTensors
from tf2_engine.placement import FLOAT_BYTES, TablePlacement
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Op, Tensor

_MORE_BYTES = 12
"""What an id takes in addition in the form of cells: its cell and its gain."""


class PartOfTable(NamedTuple):
    """One part of a table, which a server holds, by the number of the part."""

    table: TablePlan
    part: int

    @property
    def placement(self) -> TablePlacement:
        return placement_of(self.table)

    def of(self, tables: Mapping[str, Table]) -> TablePart:
        whole = tables[self.table.name]
        variables = {name: (parts[self.part],) for name, parts in whole.variables.items()}
        return TablePart(whole.plan, whole.strategy, variables, self.placement, self.part)


class CoreEnd:
    """What a core computes in a step, with ops on its device.

    Args:
        plan: of the engine. Its tables have a placement.
        servers: how many there are.
        wire: the form of gradients.
    """

    def __init__(self, plan: Plan, servers: int, wire: Wire) -> None:
        self._plan, self._servers, self._wire = plan, servers, wire

    def occurrences(self, pieces: Sequence[Raw]) -> list[Occurrences]:
        return [batch.occurrences(*piece, self._plan.out_of_range_ids) for piece in pieces]

    def as_tensors(self, feature: FeaturePlan, occurrences: Occurrences) -> OccurrenceTensors:
        return occurrences.explicit()

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        return False

    def ask(self, pieces: Sequence[Read]) -> Asked:
        """Begins to look up the features of a core."""
        features = [piece.feature for piece in pieces]
        return Asked(pieces, tables_of(self._plan, features), self._on_servers(features))

    def send(self, pieces: Sequence[Sent]) -> Messages:
        """Packs the gradients of a core's features into one message per server."""
        features = [piece.feature for piece in pieces]
        parts = {
            table.name: self._parts(table, [p for p in pieces if p.feature.table is table])
            for table in tables_of(self._plan, features)
        }
        return {
            server: pack_gradients([parts[table.name][part] for table, part in here])
            for server, here in self._on_servers(features).items()
        }

    def _on_servers(self, features: Sequence[FeaturePlan]) -> dict[int, list[PartOfTable]]:
        """The parts of the features' tables by server. Servers without any are left out."""
        tables = tables_of(self._plan, features)
        here = {server: parts_on(tables, server) for server in range(self._servers)}
        return {server: parts for server, parts in here.items() if parts}

    def _parts(self, table: TablePlan, pieces: Sequence[Sent]) -> list[TableGradients]:
        """The gradients of a table, part by part."""
        wire: Wire = self._wire
        if wire == "smallest" and all(piece.occurrences.cell is None for piece in pieces):
            wire = "occurrences"  # Here each id is a cell of its own.
        if wire in ("cells", "smallest"):
            return _by_cells(table, pieces, always=wire == "cells")
        if wire == "summed":
            ids, rows = sum_by_id(
                [kernels.contribution(p.feature, p.occurrences, p.gradient) for p in pieces]
            )
        else:
            ids = tf.concat([p.occurrences.ids for p in pieces], 0)
            rows = tf.concat(
                [kernels.row_gradients(p.feature, p.occurrences, p.gradient) for p in pieces], 0
            )
        return [
            TableGradients(part.ids, part.select(rows)) for part in route(placement_of(table), ids)
        ]


class Asked:
    """A lookup of one core whose rows are on their way.

    Attributes:
        requests: by server, the ids that the core asks for; see `messages.pack_ids`.
    """

    def __init__(
        self,
        pieces: Sequence[Read],
        tables: Sequence[TablePlan],
        here: Mapping[int, Sequence[PartOfTable]],
    ) -> None:
        self._pieces, self._tables, self._here = pieces, tables, here
        self.requests = self._requests()

    def _requests(self) -> dict[int, Tensor]:
        self._routed: dict[str, list[Routed]] = {}
        self._positions: dict[str, Iterator[Tensor]] = {}
        for table in self._tables:
            all_ids = [p.occurrences.ids for p in self._pieces if p.feature.table is table]
            distinct, position = tf.unique(tf.concat(all_ids, 0), out_idx=tf.int64)
            self._routed[table.name] = route(placement_of(table), distinct)
            sizes = tf.stack([tf.size(ids, out_type=tf.int64) for ids in all_ids])
            self._positions[table.name] = iter(tf.split(position, sizes, num=len(all_ids)))
        return {server: pack_ids(self._ids_of(parts)) for server, parts in self._here.items()}

    def activations(self, answers: Mapping[int, Tensor]) -> list[Tensor]:
        """Computes the activation of each piece from the rows that the servers sent."""
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
        for feature, _, occurrences in self._pieces:
            name = feature.table.name
            of_feature = tf.gather(whole[name], next(self._positions[name]))
            activations.append(kernels.combine(feature, of_feature, occurrences))
        return activations

    def _ids_of(self, parts: Sequence[PartOfTable]) -> list[Tensor]:
        return [self._routed[table.name][part].ids for table, part in parts]


class ServerEnd:
    """What a server computes in a step, with ops on its device.

    Args:
        tables: all tables by name. Only variables of this server are used.
        wire: the form of the incoming gradients.
    """

    def __init__(self, tables: Mapping[str, Table], wire: Wire) -> None:
        self._tables = tables
        self._may_have_cells = wire in ("cells", "smallest")

    def rows(self, here: Sequence[PartOfTable], request: Tensor) -> Tensor:
        """Packs the rows that a core has asked for; see `messages.pack_rows`."""
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
        """Updates the parts of the tables in `names`. `here` are all parts in the messages."""
        dims = [table.dim for table, _ in here]
        by_table: list[list[list[Contribution]]] = [[] for _ in here]
        for message in messages:
            unpacked = unpack_gradients(message, dims, may_have_cells=self._may_have_cells)
            for contributions, of_core in zip(by_table, unpacked, strict=True):
                contributions.append([of_core])
        ops: list[Op] = []
        for each, contributions in zip(here, by_table, strict=True):
            if each.table.name in names:
                rate = kernels.rate_of(each.table, rates)
                ops += update_table(each.of(self._tables), contributions, rate)
        return ops


def _by_cells(table: TablePlan, pieces: Sequence[Sent], *, always: bool) -> list[TableGradients]:
    """The gradients by part of the table, as cells: always, or if that takes fewer bytes."""
    explicit = [piece.occurrences.explicit() for piece in pieces]
    gradients = [tf.reshape(piece.gradient, [-1, table.dim]) for piece in pieces]
    counts = [tf.shape(rows, out_type=tf.int64)[0] for rows in gradients]
    first_cells = tf.unstack(tf.cumsum(tf.stack(counts), exclusive=True))
    rows = tf.concat(gradients, 0)
    cells = tf.concat([o.cell + f for o, f in zip(explicit, first_cells, strict=True)], 0)
    gains = tf.concat([each.gain for each in explicit], 0)
    parts = []
    for part in route(placement_of(table), tf.concat([each.ids for each in explicit], 0)):
        of_part, gain = part.select(cells), part.select(gains)
        distinct, position = tf.unique(of_part, out_idx=tf.int64)
        count, num_cells = (tf.size(each, out_type=tf.int64) for each in (of_part, distinct))
        row_bytes = FLOAT_BYTES * table.dim
        if always:
            uses_cells = tf.constant(1, tf.int64)
        else:
            smaller = row_bytes * num_cells + _MORE_BYTES * count < row_bytes * count
            uses_cells = tf.cast(smaller, tf.int64)
        # One of the two is empty, and so are its gains.
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
    """The parts of tables that a server holds, in the order of the tables."""
    return [
        PartOfTable(table, placement_of(table).servers.index(server))
        for table in tables
        if server in placement_of(table).servers
    ]
