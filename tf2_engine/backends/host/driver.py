"""The six verbs on `tf.Variable`s."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.backends.host import flight, native
from tf2_engine.backends.host.flight import Batch, Fifo, GraphFlight, QueueFlight
from tf2_engine.backends.host.lookup import look_up, row_gradients
from tf2_engine.backends.host.profile import Profiler
from tf2_engine.backends.host.update import update_table
from tf2_engine.backends.interface import Driver, Update, building_graph
from tf2_engine.batch import Occurrences, RawIds, occurrences
from tf2_engine.native import loading
from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.plan import Plan, TablePlan
from tf2_engine.tables import Table


class HostDriver(Driver):
    """TPU semantics without a TPU: the variables are the tables.

    With pipelining one update is pending: a training batch is looked up first and the update of
    the batch before it is applied after that, so activations are one step old. `retrieve` and a
    lookup for inference apply what is pending first.

    Args:
        native: whether fused ops do the work: True, False, or None for what the environment says,
            which by default is where they can be used; see `native.loading`. A table for which
            `native.fits` does not hold runs on TensorFlow's ops all the same.
    """

    def __init__(self, native: bool | None = None) -> None:
        self._asked = native
        self._ops: Any = None
        self._native: tuple[bool, ...] = ()
        self._plan: Plan | None = None
        self._tables: Mapping[str, Table] = {}
        self._in_graph = False
        self._flights: dict[str | None, GraphFlight | QueueFlight] = {}
        self._pending: Fifo | None = None
        self._profiler: Profiler | None = None

    def __repr__(self) -> str:
        ops = "native" if any(self._native) else "TensorFlow's"
        return f"<HostDriver {len(self._tables)} tables, {ops} ops>"

    def configure(self, plan: Plan) -> Any:
        self._plan = plan
        self._ops = loading.host_ops(self._asked)
        self._native = tuple(
            self._ops is not None and native.fits(feature.table) for feature in plan.features
        )
        self._in_graph = building_graph()
        self._flights = {}
        self._pending = None
        if plan.pipeline_execution_with_tensor_core and plan.training:
            gradients = [tf.float32] * (len(plan.features) * plan.num_cores)
            rates = [tf.float32] * len(plan.dynamic_rates)
            self._pending = Fifo(flight.batch_dtypes(plan) + gradients + rates, "pending")
        self._profiler = None
        if plan.profile_data_directory and plan.training:
            self._profiler = Profiler(plan)
        self._flight(None)
        return tf.no_op() if self._in_graph else None

    def load(self, tables: Mapping[str, Table]) -> Any:
        self._tables = tables
        # An update that waits belongs to the tables as they were.
        dropped = None
        if self._pending is not None:
            dropped = _when(self._pending.some(), self._drop_pending)
        return tf.group(*_as_ops([dropped])) if building_graph() else None

    def retrieve(self, tables: Mapping[str, Table]) -> Any:
        if self._profiler is None:
            return self._flush()
        done = _as_ops([self._flush(), self._profiler.write()])
        return tf.group(*done) if building_graph() else None

    def enqueue(
        self, inputs: Sequence[Sequence[RawIds] | None], training: Any, name: str | None = None
    ) -> Any:
        plan = self._ready()
        known = tf.get_static_value(training) if plan.training else False
        training = training if known is None else bool(known)
        with tf.name_scope(name or "enqueue"):
            parts = self._parts(plan, inputs)
            waiting = self._flight(name)
            done = [waiting.enqueue(core, part, training) for core, part in parts.items()]
            if self._profiler is not None and training is not False:
                done += self._profiler.count(list(parts.values()))
        return tf.group(*_as_ops(done)) if building_graph() else None

    def dequeue(self, name: str | None = None) -> Sequence[Sequence[Any]]:
        plan = self._ready()
        waiting = self._flight(name)
        with tf.name_scope(name or "dequeue"):
            batch = waiting.take_enqueued()
            before = _when(_negated(batch.training), self._flush) if self._pending else None
            with tf.control_dependencies(_as_ops([before])):
                activations = self._look_up(plan, batch)
            with tf.control_dependencies(_as_ops(tf.nest.flatten(activations))):
                after = _when(batch.training, self._flush) if self._pending else None
            with tf.control_dependencies(_as_ops([after])):
                activations = tf.nest.map_structure(tf.identity, activations)
            # A batch for inference ends here; one for training waits for its gradients.
            looked_up = dataclasses.replace(batch, after=tuple(tf.nest.flatten(activations)))
            if not building_graph():
                _when(batch.training, lambda: waiting.keep(looked_up))
            elif batch.training is not False:
                # What waits while a graph is built is known as it is built: if it only turns out
                # in the run whether a batch trains, it waits, and its update is conditional.
                waiting.keep(looked_up)
            return activations

    def send_gradients(
        self, gradients: Sequence[Sequence[Any]], rates: Sequence[Any], name: str | None = None
    ) -> Any:
        plan = self._ready()
        _check_rules(plan)
        with tf.name_scope(name or "send_gradients"):
            batch = self._flight(name).take_looked_up()
            with tf.control_dependencies(_as_ops(batch.after)):
                if building_graph():
                    return _when(batch.training, lambda: self._apply(plan, batch, gradients, rates))
                return self._apply(plan, batch, gradients, rates)

    def look_up(
        self,
        inputs: Sequence[Sequence[RawIds] | None],
        training: bool | None,
        name: str | None = None,
    ) -> tuple[Sequence[Sequence[Any]], Update]:
        plan = self._ready()
        with tf.name_scope(name or "look_up"):
            parts = self._parts(plan, inputs)
            batch = Batch(tuple(parts[core] for core in sorted(parts)), True)
            # A batch that may train does not see the update that is pending, and what it leaves
            # pending itself comes after that one.
            before = self._flush() if training is False else None
            with tf.control_dependencies(_as_ops([before])):
                activations = self._look_up(plan, batch)

        def update(gradients: Sequence[Sequence[Any]], rates: Sequence[Any]) -> Any:
            _check_rules(plan)
            with tf.name_scope("send_gradients"):
                if self._profiler is not None:
                    self._profiler.count(list(batch.occurrences))
                return self._apply(plan, batch, gradients, rates)

        return activations, update

    def _apply(
        self, plan: Plan, batch: Batch, gradients: Sequence[Sequence[Any]], rates: Sequence[Any]
    ) -> Any:
        """Updates the tables, or lets the update wait where one is to be pending."""
        if self._pending is None:
            return self._update(plan, batch, gradients, rates)
        # One update is pending at a time, also when batches overlap.
        with tf.control_dependencies(_as_ops([self._flush()])):
            return self._pending.put([*flight.pack(batch, self._native), *_flat(gradients), *rates])

    def _flight(self, name: str | None) -> GraphFlight | QueueFlight:
        """Returns where batches of a name wait, made at its first use."""
        if building_graph() != self._in_graph:
            raise errors.OutOfOrder(
                "The engine was built inside a tf.Graph and is used outside of it, or the other "
                "way round; build another one here."
            )
        if name not in self._flights:
            assert self._plan is not None
            plan = self._plan
            with tf.init_scope():
                self._flights[name] = (
                    GraphFlight(plan) if self._in_graph else QueueFlight(plan, self._native)
                )
        return self._flights[name]

    def _ready(self) -> Plan:
        if self._plan is None or not self._tables:
            raise errors.OutOfOrder(
                "The driver is not configured; `configure` and `load` come first."
            )
        return self._plan

    def _update(
        self, plan: Plan, batch: Batch, gradients: Sequence[Sequence[Any]], rates: Sequence[Any]
    ) -> Any:
        lr = {table.name: _rate(table, rates) for table in plan.tables}
        done = []
        for table in plan.tables:
            positions = plan.features_of(table)
            if any(self._native[i] for i in positions):
                continue
            per_core = [
                [
                    (core[i].ids, row_gradients(plan.features[i], core[i], sent[i]))
                    for i in positions
                ]
                for core, sent in zip(batch.occurrences, gradients, strict=True)
            ]
            done += update_table(self._tables[table.name], per_core, lr[table.name])
        if any(self._native):
            sent_back = [
                [
                    native.Sent(plan.features[i], core[i], sent[i])
                    for i, is_native in enumerate(self._native)
                    if is_native
                ]
                for core, sent in zip(batch.occurrences, gradients, strict=True)
            ]
            done.append(native.update(self._ops, plan, self._tables, sent_back, lr))
        return tf.group(*done)

    def _parts(
        self, plan: Plan, inputs: Sequence[Sequence[RawIds] | None]
    ) -> dict[int, tuple[Occurrences, ...]]:
        """Returns what occurs, per feature, for each core that passes something."""
        return {
            core: self._occurrences(plan, features)
            for core, features in enumerate(inputs)
            if features is not None
        }

    def _occurrences(self, plan: Plan, raw: Sequence[RawIds]) -> tuple[Occurrences, ...]:
        """Returns one core's occurrences by feature."""
        features = _chosen(plan.features, self._native)
        fused: Iterator[Any] = iter(())
        if features:
            chosen = _chosen(raw, self._native)
            fused = iter(native.occurrences(self._ops, features, chosen, plan.out_of_range_ids))
        return tuple(
            next(fused) if is_native else occurrences(feature, one, plan.out_of_range_ids)
            for feature, one, is_native in zip(plan.features, raw, self._native, strict=True)
        )

    def _look_up(self, plan: Plan, batch: Batch) -> list[list[Any]]:
        """Returns activations per core and feature."""
        features = _chosen(plan.features, self._native)
        fused: Iterator[Any] = iter(())
        if features:
            chosen = [_chosen(core, self._native) for core in batch.occurrences]
            fused = iter(_flat(native.look_up(self._ops, plan, self._tables, features, chosen)))
        return [
            [
                next(fused)
                if is_native
                else look_up(feature, self._tables[feature.table.name], one)
                for feature, one, is_native in zip(plan.features, core, self._native, strict=True)
            ]
            for core in batch.occurrences
        ]

    def _flush(self) -> Any:
        """Applies the pending update, if there is one."""
        if self._pending is None:
            return tf.no_op() if building_graph() else None
        return _when(self._pending.some(), self._apply_pending)

    def _drop_pending(self) -> Any:
        assert self._pending is not None
        (taken,) = flight.take_from_all(
            [self._pending], lambda: errors.OutOfOrder("No update is pending.")
        )
        return taken[0]

    def _apply_pending(self) -> Any:
        plan, pending = self._ready(), self._pending
        assert pending is not None
        (taken,) = flight.take_from_all(
            [pending], lambda: errors.OutOfOrder("No update is pending.")
        )
        size = len(flight.batch_dtypes(plan))
        batch = flight.unpack(plan, taken[:size], plan.num_cores)
        count = len(plan.features) * plan.num_cores
        sent = taken[size : size + count]
        for gradient, feature in zip(sent, plan.features * plan.num_cores, strict=True):
            gradient.set_shape([*feature.output_shape, feature.table.dim])
        per_core = [
            sent[start : start + len(plan.features)]
            for start in range(0, count, len(plan.features))
        ]
        return self._update(plan, batch, per_core, taken[size + count :])


def _rate(table: TablePlan, rates: Sequence[Any]) -> Any:
    if table.rate_tag is not None:
        return rates[table.rate_tag]
    rate: Any = table.optimizer.learning_rate
    return optimization_barrier(tf.constant(rate, tf.float32))


def _chosen(values: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    return [value for value, is_chosen in zip(values, chosen, strict=True) if is_chosen]


def _check_rules(plan: Plan) -> None:
    for table in plan.tables:
        if table.optimizer.no_rule is not None:
            raise errors.InvalidSpec(
                f"Table {table.name!r}: gradients cannot be applied, because "
                f"{table.optimizer.no_rule}"
            )


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
