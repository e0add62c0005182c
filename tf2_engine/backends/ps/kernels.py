"""A step of tables on parameter servers: rows come to the cores, gradients go to the servers.

Per step, core and server there are two messages each way: ids of distinct rows and their
parameters; then ids of occurrences and their gradients. Slots never leave their server: the rule is
applied beside them, once a row, to the sum over all cores in their order. The numbers are those of
`HostDriver` on TensorFlow's ops, to the bit; but for powers (FTRL, AdagradMomentum), which
TensorFlow computes by another function for the last elements of a vector.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from tf2_engine import batch
from tf2_engine.backends.host.kernels import KernelSet, Raw, Read, Sent, combine, rate_of
from tf2_engine.backends.host.kernels import row_gradients as gradients_of_rows
from tf2_engine.backends.host.update import Contribution, update_table
from tf2_engine.backends.interface import PerCore, Rates
from tf2_engine.backends.ps.cores import ServerCores
from tf2_engine.backends.ps.messages import pack_ids, pack_rows, unpack_ids, unpack_rows
from tf2_engine.backends.ps.rows import Routed, TablePart, gathered, route
from tf2_engine.batch import Occurrences, OccurrenceTensors
from tf2_engine.graph_mode import run_after
from tf2_engine.placement import TablePlacement
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Op, Tensor

Message = tuple[Tensor, Tensor]
"""The gradients of one core for one server: ids of occurrences, packed, and their gradients."""

Messages = dict[int, Message]
"""The gradients of one core, by the number of the server that they are for."""


class ServerKernels(KernelSet):
    """A step on TensorFlow's ops, each where the rows, or the core, are."""

    name = "TensorFlow's ops"

    def __init__(self, plan: Plan, tables: Mapping[str, Table], cores: ServerCores) -> None:
        self._plan, self._tables, self._cores = plan, tables, cores
        self._reads: list[Op] = []  # of the lookup that was made last
        self._before_update: Sequence[Op] = ()

    def on_core(self, core: int) -> AbstractContextManager[None]:
        return self._cores.on_core(core)

    def together(self, num_cores: int) -> Sequence[Sequence[int]]:
        return [[core] for core in range(num_cores)]

    def occurrences(self, pieces: Sequence[Raw]) -> list[Occurrences]:
        return [batch.occurrences(*piece, self._plan.out_of_range_ids) for piece in pieces]

    def as_tensors(self, feature: FeaturePlan, occurrences: Occurrences) -> OccurrenceTensors:
        return occurrences.explicit()

    def look_up(self, pieces: Sequence[Read]) -> list[Tensor]:
        self._reads = []
        activations = []
        for core in range(self._plan.num_cores):
            of_core = [piece for piece in pieces if piece.core == core]
            if of_core:
                with self.on_core(core):
                    activations += self._look_up_on_core(of_core)
        return activations

    def reads(self, activations: PerCore) -> Sequence[Op]:
        return tuple(self._reads)

    @contextlib.contextmanager
    def after(self, ops: Sequence[Op]) -> Iterator[None]:
        # Rows are read and written on one task: no other one has to wait, nor hears of it.
        before, self._before_update = self._before_update, ops
        try:
            yield
        finally:
            self._before_update = before

    def update(self, pieces: Sequence[Sent], rates: Rates) -> list[Op]:
        return self.apply(self.messages(pieces), rates)

    def servers_in_use(self) -> list[int]:
        """Returns the numbers of the servers that hold rows of tables that have features."""
        tables = self._tables_of(self._plan.features)
        count = len(self._cores.servers.devices)
        return [server for server in range(count) if _on_server(tables, server)]

    def messages(self, pieces: Sequence[Sent]) -> list[Messages]:
        """Returns the gradients of each core that has pieces, as it sends them to the servers."""
        tables = self._tables_of([piece.feature for piece in pieces])
        return [self._gradients_of(core, tables, pieces) for core in self._cores_of(pieces)]

    def apply(self, messages: Sequence[Messages], rates: Rates) -> list[Op]:
        """Updates the tables that have features by what all cores sent; returns the ops."""
        tables = self._tables_of(self._plan.features)
        ops: list[Op] = []
        for server, device in enumerate(self._cores.servers.devices):
            here = _on_server(tables, server)
            if not here:
                continue
            with tf.device(device):
                there = tf.no_op().device
            reads = [read for read in self._before_update if read.device == there]
            of_server = [of_core[server] for of_core in messages]
            with tf.device(device), run_after(reads):
                ops += self._update_on(server, here, of_server, rates)
        return ops

    def _look_up_on_core(self, pieces: Sequence[Read]) -> list[Tensor]:
        tables = self._tables_of([piece.feature for piece in pieces])
        routed: dict[str, list[Routed]] = {}
        positions: dict[str, Iterator[Tensor]] = {}
        for table in tables:
            all_ids = [p.occurrences.ids for p in pieces if p.feature.table is table]
            distinct, position = tf.unique(tf.concat(all_ids, 0), out_idx=tf.int64)
            routed[table.name] = route(_placement(table), distinct)
            sizes = tf.stack([tf.size(ids, out_type=tf.int64) for ids in all_ids])
            positions[table.name] = iter(tf.split(position, sizes, num=len(all_ids)))
        parts = self._parameters(tables, routed)
        rows = {table.name: gathered(routed[table.name], parts[table.name]) for table in tables}
        activations = []
        for feature, _, occurrences in pieces:
            name = feature.table.name
            of_feature = tf.gather(rows[name], next(positions[name]))
            activations.append(combine(feature, of_feature, occurrences))
        return activations

    def _parameters(
        self, tables: Sequence[TablePlan], routed: Mapping[str, list[Routed]]
    ) -> dict[str, list[Tensor]]:
        """Returns for each part of each table the parameters of the ids that were routed to it."""
        parameters: dict[str, dict[int, Tensor]] = {table.name: {} for table in tables}
        for server, device in enumerate(self._cores.servers.devices):
            here = _on_server(tables, server)
            if not here:
                continue
            ids = [routed[table.name][part].ids for table, part in here]
            request = pack_ids(ids)
            with tf.device(device):
                answer = self._read_rows(here, request)
            rows = unpack_rows(answer, ids, [table.dim for table, _ in here])
            for (table, part), of_part in zip(here, rows, strict=True):
                parameters[table.name][part] = of_part
        return {name: [parts[part] for part in sorted(parts)] for name, parts in parameters.items()}

    def _read_rows(self, here: Sequence[tuple[TablePlan, int]], request: Tensor) -> Tensor:
        """Returns the answer of a server to a request for rows."""
        asked = unpack_ids(request, len(here))
        rows = [
            self._part(table, part).gather(PARAMETERS, ids)
            for (table, part), ids in zip(here, asked, strict=True)
        ]
        self._reads += rows
        return pack_rows(rows)

    def _gradients_of(
        self, core: int, tables: Sequence[TablePlan], pieces: Sequence[Sent]
    ) -> Messages:
        messages = {}
        with self.on_core(core):
            ids, gradients = {}, {}
            for table in tables:
                of_table = [p for p in pieces if p.core == core and p.feature.table is table]
                all_ids = tf.concat([p.occurrences.ids for p in of_table], 0)
                all_gradients = tf.concat(
                    [gradients_of_rows(p.feature, p.occurrences, p.gradient) for p in of_table], 0
                )
                routed = route(_placement(table), all_ids)
                ids[table.name] = [part.ids for part in routed]
                gradients[table.name] = [part.select(all_gradients) for part in routed]
            for server in range(len(self._cores.servers.devices)):
                here = _on_server(tables, server)
                if here:
                    messages[server] = (
                        pack_ids([ids[table.name][part] for table, part in here]),
                        pack_rows([gradients[table.name][part] for table, part in here]),
                    )
        return messages

    def _update_on(
        self,
        server: int,
        here: Sequence[tuple[TablePlan, int]],
        messages: Sequence[Message],
        rates: Rates,
    ) -> list[Op]:
        """Updates the parts of a server by what all cores sent; returns the ops."""
        dims = [table.dim for table, _ in here]
        by_table: list[list[list[Contribution]]] = [[] for _ in here]
        for ids_message, gradients_message in messages:
            ids = unpack_ids(ids_message, len(here))
            gradients = unpack_rows(gradients_message, ids, dims)
            for contributions, *contribution in zip(by_table, ids, gradients, strict=True):
                contributions.append([Contribution(contribution[0], contribution[1])])
        ops: list[Op] = []
        for (table, part), contributions in zip(here, by_table, strict=True):
            ops += update_table(self._part(table, part), contributions, rate_of(table, rates))
        return ops

    def _part(self, table: TablePlan, part: int) -> TablePart:
        whole = self._tables[table.name]
        variables = {name: (parts[part],) for name, parts in whole.variables.items()}
        return TablePart(whole.plan, whole.strategy, variables, _placement(table), part)

    def _tables_of(self, features: Sequence[FeaturePlan]) -> list[TablePlan]:
        names = {feature.table.name for feature in features}
        return [table for table in self._plan.tables if table.name in names]

    def _cores_of(self, pieces: Sequence[Sent]) -> list[int]:
        return sorted({piece.core for piece in pieces})


def _placement(table: TablePlan) -> TablePlacement:
    assert table.placement is not None
    return table.placement


def _on_server(tables: Sequence[TablePlan], server: int) -> list[tuple[TablePlan, int]]:
    """Returns the tables of which a server holds a part, each with the number of the part."""
    return [
        (table, _placement(table).servers.index(server))
        for table in tables
        if server in _placement(table).servers
    ]
