"""The six verbs on `tf.Variable`s."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.batch import RawIds, occurrences
from tf2_engine.drivers.base import Driver, building_graph
from tf2_engine.drivers.host import flight
from tf2_engine.drivers.host.flight import Batch, Fifo, GraphFlight, QueueFlight
from tf2_engine.drivers.host.lookup import look_up, row_gradients
from tf2_engine.drivers.host.update import update_table
from tf2_engine.optimizers.base import opaque
from tf2_engine.phase import Stage
from tf2_engine.plan import Plan
from tf2_engine.tables import Table


class HostDriver(Driver):
    """TPU semantics without a TPU: the variables are the tables.

    With pipelining one update is pending: a training batch is looked up first and the update of
    the batch before it is applied after that, so activations are one step old. `retrieve` and a
    lookup for inference apply what is pending first.
    """

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._tables: Mapping[str, Table] = {}
        self._graph_flight = GraphFlight()
        self._queue_flight: QueueFlight | None = None
        self._pending: Fifo | None = None

    def __repr__(self) -> str:
        return f"<HostDriver {len(self._tables)} tables>"

    def configure(self, plan: Plan) -> Any:
        self._plan = plan
        self._graph_flight = GraphFlight()
        in_graph = building_graph()
        self._queue_flight = None if in_graph else QueueFlight(plan)
        self._pending = None
        if plan.pipeline_execution_with_tensor_core and plan.training:
            gradients = [tf.float32] * (len(plan.features) * plan.num_cores)
            rates = [tf.float32] * len(plan.dynamic_rates)
            self._pending = Fifo(flight.batch_dtypes(plan) + gradients + rates, "pending")
        return tf.no_op() if in_graph else None

    def load(self, tables: Mapping[str, Table]) -> Any:
        self._tables = tables
        return tf.no_op() if building_graph() else None

    def retrieve(self, tables: Mapping[str, Table]) -> Any:
        return self._flush()

    def enqueue(
        self, inputs: Sequence[Sequence[RawIds]], training: Any, name: str | None = None
    ) -> Any:
        plan = self._ready()
        with tf.name_scope(name or "enqueue"):
            batch = Batch(
                tuple(
                    tuple(
                        occurrences(feature, raw, plan.out_of_range_ids)
                        for feature, raw in zip(plan.features, core, strict=True)
                    )
                    for core in inputs
                ),
                training,
            )
            return self._flight().put(Stage.ENQUEUED, batch)

    def dequeue(self, name: str | None = None) -> Sequence[Sequence[Any]]:
        plan = self._ready()
        with tf.name_scope(name or "dequeue"):
            batch = self._flight().take("dequeue")
            before = _when(_negated(batch.training), self._flush) if self._pending else None
            with tf.control_dependencies(_as_ops([before])):
                activations = [
                    [
                        look_up(feature, self._tables[feature.table.name], occurrence)
                        for feature, occurrence in zip(plan.features, core, strict=True)
                    ]
                    for core in batch.occurrences
                ]
            # A batch for inference ends here; one for training waits for its gradients.
            kept = _when(batch.training, lambda: self._flight().put(Stage.LOOKED_UP, batch))
            with tf.control_dependencies(_as_ops(tf.nest.flatten(activations))):
                after = _when(batch.training, self._flush) if self._pending else None
            with tf.control_dependencies(_as_ops([kept, after])):
                return tf.nest.map_structure(tf.identity, activations)

    def send_gradients(
        self, gradients: Sequence[Sequence[Any]], rates: Sequence[Any], name: str | None = None
    ) -> Any:
        plan = self._ready()
        with tf.name_scope(name or "send_gradients"):
            batch = self._flight().take("apply_gradients")
            if self._pending is not None:
                return self._pending.put([*flight.pack(batch), *_flat(gradients), *rates])
            return self._update(plan, batch, gradients, rates)

    def _flight(self) -> Any:
        if building_graph():
            return self._graph_flight
        if self._queue_flight is None:
            raise errors.OutOfOrder(
                "The engine was built inside a tf.Graph and is used outside of it; build another "
                "one here."
            )
        return self._queue_flight

    def _ready(self) -> Plan:
        if self._plan is None or not self._tables:
            raise errors.OutOfOrder(
                "The driver is not configured; `configure` and `load` come first."
            )
        return self._plan

    def _update(
        self, plan: Plan, batch: Batch, gradients: Sequence[Sequence[Any]], rates: Sequence[Any]
    ) -> Any:
        done = []
        for table in plan.tables:
            per_core = [
                [
                    (core[i].ids, row_gradients(plan.features[i], core[i], sent[i]))
                    for i in plan.features_of(table)
                ]
                for core, sent in zip(batch.occurrences, gradients, strict=True)
            ]
            rate: Any = table.optimizer.learning_rate
            lr = (
                opaque(tf.constant(rate, tf.float32))
                if table.rate_tag is None
                else rates[table.rate_tag]
            )
            done += update_table(self._tables[table.name], per_core, lr)
        return tf.group(*done)

    def _flush(self) -> Any:
        """Applies the pending update, if there is one."""
        if self._pending is None:
            return tf.no_op() if building_graph() else None
        return _when(self._pending.some(), self._apply_pending)

    def _apply_pending(self) -> Any:
        plan, pending = self._ready(), self._pending
        assert pending is not None
        taken = pending.take(lambda: errors.OutOfOrder("No update is pending."))
        size = len(flight.batch_dtypes(plan))
        batch = flight.unpack(plan, taken[:size])
        count = len(plan.features) * plan.num_cores
        sent = taken[size : size + count]
        for gradient, feature in zip(sent, plan.features * plan.num_cores, strict=True):
            gradient.set_shape([*feature.output_shape, feature.table.dim])
        per_core = [
            sent[start : start + len(plan.features)]
            for start in range(0, count, len(plan.features))
        ]
        return self._update(plan, batch, per_core, taken[size + count :])


def _flat(gradients: Sequence[Sequence[Any]]) -> list[Any]:
    return [gradient for core in gradients for gradient in core]


def _negated(condition: Any) -> Any:
    return (not condition) if isinstance(condition, bool) else tf.logical_not(condition)


def _when(condition: Any, action: Callable[[], Any]) -> Any:
    """Runs `action` if `condition` holds; both may be of the graph."""
    if not isinstance(condition, bool) and tf.executing_eagerly():
        condition = bool(condition)
    if isinstance(condition, bool):
        return action() if condition else None

    def run() -> Any:
        done = action()
        with tf.control_dependencies(_as_ops([done])):
            return tf.constant(True)

    return tf.cond(condition, run, lambda: tf.constant(False))


def _as_ops(values: Sequence[Any]) -> list[Any]:
    return [] if tf.executing_eagerly() else [value for value in values if value is not None]
