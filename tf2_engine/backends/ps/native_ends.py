"""A step with parameter servers, in native ops. Each op replaces about twenty of TensorFlow's ops.

The messages equal those of TensorFlow's ops, so tasks with and without native ops can work
together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf2_engine.backends.host.kernels import OfFeature, combine, rate_of, tables_of
from tf2_engine.backends.host.native_kernels import (
    NativeKernels,
    has_native_rule,
    looks_up_rows,
    places,
)
from tf2_engine.backends.interface import Rates
from tf2_engine.backends.ps.ends import Asked, CoreEnd, PartOfTable, ServerEnd, placement_of
from tf2_engine.backends.ps.messages import Message, Messages, Wire, unpack_ids, unpack_rows
from tf2_engine.batch import KernelColumns, Occurrences
from tf2_engine.config_proto import optimizer_proto
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Object, Op, Tensor

_ROW_BITS = 40
"""The low bits of a position are a row in a server's answer; the other bits number the server."""


class NativeCoreEnd(CoreEnd):
    """Like `CoreEnd`, with native ops."""

    def __init__(self, plan: Plan, servers: int, wire: Wire, ops: Object) -> None:
        super().__init__(plan, servers, wire)
        self._ops = ops
        self._reading = NativeKernels(ops, plan, {}, "tpu")

    def occurrences(self, features: Sequence[OfFeature]) -> list[Occurrences]:
        return self._reading.occurrences(features)

    def as_tensors(self, occurrences: Occurrences) -> KernelColumns:
        if looks_up_rows(occurrences.feature.table):
            return occurrences.compact()
        return occurrences.explicit()

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        return looks_up_rows(feature.table)

    def ask(self, occurrences: Sequence[Occurrences]) -> Asked:
        tables = tables_of(self._plan, [one.feature for one in occurrences])
        return _NativeAsked(occurrences, tables, self._on_servers(tables), self._ops)

    def send(self, occurrences: Sequence[Occurrences], gradients: Sequence[Tensor]) -> Messages:
        tables = tables_of(self._plan, [one.feature for one in occurrences])
        here = self._on_servers(tables)
        ids, cells, gains, _ = zip(*(one.compact() for one in occurrences), strict=True)
        sent = self._ops.tf2_engine_send(
            ids=list(ids),
            cells=list(cells),
            gains=list(gains),
            gradients=list(gradients),
            wire=self._wire,
            dims=[table.dim for table in tables],
            num_servers=len(here),
            **places(tables, occurrences),
            **_routes(tables, list(here)),
        )
        return dict(zip(here, zip(sent.numbers, sent.floats, strict=True), strict=True))


class _NativeAsked(Asked):
    def __init__(
        self,
        occurrences: Sequence[Occurrences],
        tables: Sequence[TablePlan],
        here: Mapping[int, Sequence[PartOfTable]],
        ops: Object,
    ) -> None:
        self._ops = ops
        super().__init__(occurrences, tables, here)

    def _requests(self) -> dict[int, Tensor]:
        routed = self._ops.tf2_engine_route(
            ids=[one.ids for one in self._occurrences],
            num_servers=len(self._here),
            tables_on=[len(parts) for parts in self._here.values()],
            **places(self._tables, self._occurrences),
            **_routes(self._tables, list(self._here)),
        )
        self._position_of = list(routed.positions)
        return dict(zip(self._here, routed.requests, strict=True))

    def activations(self, answers: Mapping[int, Tensor]) -> list[Tensor]:
        fused = [n for n, one in enumerate(self._occurrences) if looks_up_rows(one.feature.table)]
        activations = dict(zip(fused, self._combined(fused, answers), strict=True))
        for number, one in enumerate(self._occurrences):
            if number not in activations:
                rows = self._rows(one.feature.table, answers, self._position_of[number])
                plain = one if one.splits is None else Occurrences(one.feature, *one.explicit())
                activations[number] = combine(rows, plain)
        return [activations[number] for number in range(len(self._occurrences))]

    def _combined(self, numbers: Sequence[int], answers: Mapping[int, Tensor]) -> list[Tensor]:
        if not numbers:
            return []
        fused = [self._occurrences[number] for number in numbers]
        _, cells, gains, num_cells = zip(*(one.compact() for one in fused), strict=True)
        activations: list[Tensor] = self._ops.tf2_engine_combine(
            requests=list(self.requests.values()),
            answers=[answers[server] for server in self._here],
            ids=[self._position_of[number] for number in numbers],
            cells=list(cells),
            gains=list(gains),
            num_cells=list(num_cells),
            holds=[
                int(server in placement_of(table).servers)
                for table, server in itertools.product(self._tables, self._here)
            ],
            dims=[table.dim for table in self._tables],
            sizes=[list(one.feature.output_shape) for one in fused],
            **places(self._tables, fused),
        )
        return activations

    def _rows(self, table: TablePlan, answers: Mapping[int, Tensor], positions: Tensor) -> Tensor:
        rows = []
        for server, parts in self._here.items():
            names = [each.table.name for each in parts]
            if table.name in names:
                ids = unpack_ids(self.requests[server], len(parts))
                dims = [each.table.dim for each in parts]
                of_server = unpack_rows(answers[server], ids, dims)
                rows.append(of_server[names.index(table.name)])
            else:
                rows.append(tf.zeros([0, table.dim]))
        sizes = tf.stack([tf.shape(each, out_type=tf.int64)[0] for each in rows])
        server = tf.bitwise.right_shift(positions, tf.constant(_ROW_BITS, tf.int64))
        first = tf.gather(tf.cumsum(sizes, exclusive=True), server)
        return tf.gather(tf.concat(rows, 0), first + positions % (1 << _ROW_BITS))


class NativeServerEnd(ServerEnd):
    """Like `ServerEnd`, with native ops. Tables without a native rule use TensorFlow's ops."""

    def __init__(self, tables: Mapping[str, Table], wire: Wire, ops: Object) -> None:
        super().__init__(tables, wire)
        self._ops = ops

    def rows(self, here: Sequence[PartOfTable], request: Tensor) -> Tensor:
        variables = [each.of(self._tables).variables[PARAMETERS][0] for each in here]
        return self._ops.tf2_engine_serve(
            parameters=[variable.handle for variable in variables],
            request=request,
            dims=[table.dim for table, _ in here],
            **_parts(here),
        )

    def update(
        self, here: Sequence[PartOfTable], messages: Sequence[Message], rates: Rates
    ) -> list[Op]:
        fused = [each for each in here if has_native_rule(each.table)]
        plain = {each.table.name for each in here if each not in fused}
        ops: list[Op] = []
        if plain:
            ops += self._update_some(here, messages, rates, plain)
        if fused:
            ops.append(self._receive(here, fused, messages, rates))
        return ops

    def _receive(
        self,
        here: Sequence[PartOfTable],
        fused: Sequence[PartOfTable],
        messages: Sequence[Message],
        rates: Rates,
    ) -> Op:
        variables = [
            each.of(self._tables).variables[name][0]
            for each in fused
            for name in (PARAMETERS, *each.table.optimizer.slot_names)
        ]
        numbers, floats = zip(*messages, strict=True)
        return self._ops.tf2_engine_receive(
            variables=[variable.handle for variable in variables],
            numbers=list(numbers),
            floats=list(floats),
            rates=[rate_of(table, rates) for table, _ in fused],
            dims=[table.dim for table, _ in fused],
            optimizers=[optimizer_proto(table).SerializeToString() for table, _ in fused],
            sent_dims=[table.dim for table, _ in here],
            numbers_in_message=[here.index(each) for each in fused],
            names=[f"Table {table.name!r}" for table, _ in fused],
            **_parts(fused),
        )


def _routes(tables: Sequence[TablePlan], servers: Sequence[int]) -> dict[str, Object]:
    placements = [placement_of(table) for table in tables]
    return {
        "rows": [table.rows for table in tables],
        "range_counts": [len(each.ranges) for each in placements],
        "firsts": [r.first for each in placements for r in each.ranges],
        "servers": [
            servers.index(each.servers[r.part]) for each in placements for r in each.ranges
        ],
        "in_turns": [each.layout == "mod" and not each.is_whole for each in placements],
    }


def _parts(here: Sequence[PartOfTable]) -> dict[str, Object]:
    ranges = [each.placement.ranges_of(each.part) for each in here]
    starts = [itertools.accumulate((r.rows for r in of_part[:-1]), initial=0) for of_part in ranges]
    return {
        "rows": [each.placement.part_rows[each.part] for each in here],
        "steps": [of_part[0].step for of_part in ranges],
        "range_counts": [len(of_part) for of_part in ranges],
        "firsts": [r.first for of_part in ranges for r in of_part],
        "starts": [start for of_part in starts for start in of_part],
    }
