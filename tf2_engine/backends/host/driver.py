"""The host driver, which keeps tables in `tf.Variable`s."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import get_args

import tensorflow as tf

from tf2_engine import errors, sparsecore_rules
from tf2_engine.backends.host.batch_queue import (
    Apply,
    BatchQueues,
    PendingUpdate,
    QueuesOfEngine,
    Step,
)
from tf2_engine.backends.host.cores import HostCores
from tf2_engine.backends.host.gpu_kernels import GpuKernels
from tf2_engine.backends.host.kernels import (
    KernelSet,
    SplitKernels,
    TensorFlowKernels,
    raw_occurrences,
)
from tf2_engine.backends.host.native_kernels import NativeKernels, NativeKernelsOnGpu, supports
from tf2_engine.backends.host.profile import Profiler
from tf2_engine.backends.interface import (
    Activations,
    Arithmetic,
    Gradients,
    Rates,
    StepDriver,
    Update,
)
from tf2_engine.batch import Batch, Occurrences, read_unchecked
from tf2_engine.graph_mode import building_graph, run_after, run_if, to_run
from tf2_engine.native import gpu_ops, loading
from tf2_engine.plan import Plan, TablePlan
from tf2_engine.tables import Table
from tf2_engine.types import Op, Tensor


@dataclasses.dataclass(frozen=True)
class Configured:
    """The state of a configured driver. With pipelining, `apply` delays the update by one step."""

    plan: Plan
    kernels: KernelSet
    queues: BatchQueues
    pending: PendingUpdate | None
    profiler: Profiler | None
    apply: Apply

    def reads(self, activations: Activations) -> tuple[Op, ...]:
        if self.pending:
            # The activations become available after the pending update. The next update must wait
            # for the activations, so that it cannot overtake the pending update.
            return tuple(tf.nest.flatten(activations))
        return tuple(self.kernels.reads(activations))

    def after(self, ops: Sequence[Op]) -> AbstractContextManager[None]:
        return run_after(ops) if self.pending else self.kernels.after(ops)


class HostDriver(StepDriver):
    """Computes on the tables' variables what a TPU would compute.

    With pipelining, a training batch is looked up before the update of the previous batch, so the
    activations are one step old. `retrieve` and lookups for inference apply the pending update
    first.

    Args:
        native: whether to use the fused native ops for tables that they support. If None, an
            environment variable decides; see `native.loading`.
        arithmetic: which update rules to apply, "tpu" for the first TPU generations or "sparsecore"
            for TPU v5p, v6e and TPU7x; see `sparsecore_rules`.
    """

    def __init__(self, native: bool | None = None, *, arithmetic: Arithmetic = "tpu") -> None:
        if arithmetic not in get_args(Arithmetic):
            raise errors.InvalidSpec(
                f"`arithmetic` must be 'tpu' or 'sparsecore', got {arithmetic!r}."
            )
        self._native = native
        self.arithmetic = arithmetic
        self._configured: Configured | None = None
        self._tables: dict[str, Table] = {}

    def __repr__(self) -> str:
        kernels = self._configured.kernels if self._configured else TensorFlowKernels
        of = ", SparseCore's arithmetic" if self.arithmetic == "sparsecore" else ""
        return f"<HostDriver {len(self._tables)} tables, {kernels.name}{of}>"

    def cores(self, count: int | None, hosts: int | None) -> HostCores:
        return HostCores(count, hosts)

    def configure(self, plan: Plan) -> Op:
        if self.arithmetic == "sparsecore":
            plan = _with_rules_of_sparsecore(plan)
        kernels = self._kernels_for(plan)
        pipelined = plan.pipeline_execution_with_tensor_core and plan.training
        profiled = plan.profile_data_directory and plan.training
        pending = PendingUpdate(plan, kernels, self._update) if pipelined else None
        profiler = Profiler(plan, kernels) if profiled else None
        apply = pending.put if pending else self._update
        queues = self._queues_for(plan, kernels)
        self._configured = Configured(plan, kernels, queues, pending, profiler, apply)
        return to_run(None)

    def load(self, tables: Mapping[str, Table]) -> Op:
        self._tables.clear()
        if self.arithmetic == "sparsecore":
            tables = {
                name: dataclasses.replace(table, plan=_of_sparsecore(table.plan))
                for name, table in tables.items()
            }
        self._tables.update(tables)
        # A pending update was computed for the old values of the tables.
        pending = self._configured.pending if self._configured else None
        return to_run(pending.drop() if pending else None)

    def retrieve(self, tables: Mapping[str, Table]) -> Op:
        configured = self._configured
        flush = self._flush()
        checks = configured.kernels.check_batches() if configured else None
        write = configured.profiler.write() if configured and configured.profiler else None
        return to_run([flush, checks, write])

    def enqueue(self, batch: Batch, training: Tensor | bool, name: str | None = None) -> Op:
        configured = self._ready()
        static = tf.get_static_value(training) if configured.plan.training else False
        training = training if static is None else bool(static)
        with tf.name_scope(name or "enqueue"):
            # Ids must be checked before they wait in a queue. In a graph they are looked up in the
            # same step, and the lookup checks them.
            parts = self._occurrences(configured, batch, of_step=building_graph())
            queue = configured.queues.named(name)
            ops = [queue.enqueue(core, of_core, training) for core, of_core in parts.items()]
            if configured.profiler is not None and training is not False:
                ops += configured.profiler.count(list(parts.values()))
        return to_run(ops)

    def dequeue(self, name: str | None = None) -> Activations:
        configured = self._ready()
        pending = configured.pending
        queue = configured.queues.named(name)
        with tf.name_scope(name or "dequeue"):
            step = queue.take_enqueued()
            before = run_if(_negated(step.training), pending.flush) if pending else None
            with run_after([before]):
                activations = configured.kernels.look_up(step.occurrences)
            with run_after(tf.nest.flatten(activations)):
                after = run_if(step.training, pending.flush) if pending else None
            with run_after([after]):
                activations = _copies(configured.kernels, activations)
            # A batch for inference ends here; a training batch waits for its gradients.
            queue.keep(dataclasses.replace(step, after=configured.reads(activations)))
            return activations

    def send_gradients(self, gradients: Gradients, rates: Rates, name: str | None = None) -> Op:
        configured = self._ready()
        check_rules(configured.plan)
        with tf.name_scope(name or "send_gradients"):
            step = configured.queues.named(name).take_looked_up()
            with configured.after(step.after):
                update = run_if(step.training, lambda: configured.apply(step, gradients, rates))
            return to_run(update)

    def reset_batches(self) -> Op:
        # A pending update stays: its step has not failed.
        return to_run(self._ready().queues.reset())

    def look_up(
        self, batch: Batch, training: bool | None, name: str | None = None
    ) -> tuple[Activations, Update]:
        configured = self._ready()
        with tf.name_scope(name or "look_up"):
            parts = self._occurrences(configured, batch, of_step=True)
            step = Step([parts[core] for core in sorted(parts)], True)
            # A training batch is looked up before the pending update. The batch's own update is
            # applied after the pending one.
            before = self._flush() if training is False else None
            with run_after([before]):
                activations = configured.kernels.look_up(step.occurrences)
            # The update waits for the lookup, even if the gradients do not depend on it, so that
            # the ids of all tables are checked before a table is written.
            reads = configured.reads(activations)

        def update(gradients: Gradients, rates: Rates) -> Op:
            check_rules(configured.plan)
            with tf.name_scope("send_gradients"), configured.after(reads):
                if configured.profiler is not None:
                    configured.profiler.count(step.occurrences)
                return configured.apply(step, gradients, rates)

        return activations, update

    def _ready(self) -> Configured:
        if self._configured is None or not self._tables:
            raise errors.OutOfOrder(
                "The driver is not configured. Call `configure` and `load` first."
            )
        return self._configured

    def _kernels_for(self, plan: Plan) -> KernelSet:
        names = {one.name for one in plan.tables if supports(one)}
        if loading.on_gpu():
            return self._kernels_on_gpu(plan, names)
        ops = loading.host_ops(self._native)
        fused = NativeKernels(ops, plan, self._tables, self.arithmetic)
        plain = TensorFlowKernels(plan, self._tables)
        return _together(plan, fused, plain, set() if ops is None else names)

    def _kernels_on_gpu(self, plan: Plan, names: Set[str]) -> KernelSet:
        plain = GpuKernels(plan, self._tables)
        if self.arithmetic == "sparsecore":  # The GPU kernels lack the SparseCore rules.
            names = set()
        rules = {table.optimizer.proto_field for table in plan.tables if table.name in names}
        if not rules:
            return plain
        ops = loading.usable(self._native, lambda: gpu_ops.load(rules))
        fused = NativeKernelsOnGpu(ops, plan, self._tables, self.arithmetic)
        return _together(plan, fused, plain, set() if ops is None else names)

    def _queues_for(self, plan: Plan, kernels: KernelSet) -> BatchQueues:
        return QueuesOfEngine(plan, kernels)

    def _occurrences(
        self, configured: Configured, batch: Batch, of_step: bool
    ) -> dict[int, list[Occurrences]]:
        kernels = configured.kernels
        # A profiler needs checked ids, and so does an update that is applied one step later.
        of_step = of_step and configured.profiler is None and configured.pending is None
        is_raw = of_step and kernels.reads_raw(batch)
        read = kernels.occurrences_of_step if of_step else kernels.occurrences
        parts = {}
        for core, part in batch.parts.items():
            with kernels.on_core(core) if is_raw else kernels.on_ids(core):
                flat = [read_unchecked(*values) for values in part]
                features = list(zip(configured.plan.features, flat, strict=True))
                parts[core] = raw_occurrences(features) if is_raw else read(features)
        return parts

    def _update(self, step: Step, gradients: Gradients, rates: Rates) -> Op:
        return tf.group(*self._ready().kernels.update(step.occurrences, gradients, rates))

    def _flush(self) -> Op:
        pending = self._configured.pending if self._configured else None
        return pending.flush() if pending else None


def _together(plan: Plan, fused: KernelSet, plain: KernelSet, names: Set[str]) -> KernelSet:
    if not names:
        return plain
    return fused if len(names) == len(plan.tables) else SplitKernels(fused, plain, names)


def _of_sparsecore(table: TablePlan) -> TablePlan:
    optimizer = sparsecore_rules.of_sparsecore(table.name, table.optimizer)
    return dataclasses.replace(table, optimizer=optimizer)


def _with_rules_of_sparsecore(plan: Plan) -> Plan:
    tables = {table.name: _of_sparsecore(table) for table in plan.tables}
    features = tuple(
        dataclasses.replace(feature, table=tables[feature.table.name]) for feature in plan.features
    )
    return dataclasses.replace(plan, tables=tuple(tables.values()), features=features)


def _copies(kernels: KernelSet, activations: Activations) -> list[list[Tensor]]:
    copies = []
    for core, tensors in enumerate(activations):
        with kernels.on_core(core):
            copies.append([tf.identity(tensor) for tensor in tensors])
    return copies


def check_rules(plan: Plan) -> None:
    for table in plan.tables:
        if table.optimizer.no_rule is not None:
            raise errors.InvalidSpec(
                f"Table {table.name!r}: gradients cannot be applied, because "
                f"{table.optimizer.no_rule}"
            )


def _negated(condition: Tensor | bool) -> Tensor | bool:
    return not condition if isinstance(condition, bool) else tf.logical_not(condition)
