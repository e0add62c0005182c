"""The driver for SparseCores, which uses the ops of stock's TPUEmbeddingV2."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Mapping
from typing import ClassVar, Final, TypeVar

import tensorflow as tf

from tf2_engine import errors, log, soft_sparsecore, sparsecore_rules, tf_compat
from tf2_engine.backends.host import HostDriver
from tf2_engine.backends.interface import Activations, Driver, Gradients, Rates, ReplicaDriver
from tf2_engine.backends.sparsecore import inputs, passes
from tf2_engine.backends.sparsecore.stacks import DeviceTable, stacks_of
from tf2_engine.backends.tpu import topology as topologies
from tf2_engine.backends.tpu.cores import TpuCores, check_control_flow
from tf2_engine.batch import Batch
from tf2_engine.graph_mode import to_run
from tf2_engine.plan import Plan, TablePlan
from tf2_engine.sparsecore_layout import SparseCores
from tf2_engine.sparsecore_limits import SparseCoreLimits
from tf2_engine.specs import EngineSpec, TableSpec
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Object, Op, Strategy, Tensor

_Value = TypeVar("_Value")

_log = log.PlainLogger(__name__)

_HOST = "or use driver='host', which supports this."

DEFAULT_SPARSE_CORES = 4
"""The number of SparseCores per core if the hardware does not report it, as stock assumes."""


class SparseCoreCores(TpuCores):
    """The cores of a TPUStrategy on a TPU with SparseCores.

    Ids are passed to the lookup as tensors, not through a queue, so `enqueue` must also be called
    inside `strategy.run`.
    """

    _queues_batches = False
    _inside = (
        "SparseCores have no queue of batches: call `enqueue`, `dequeue` and `apply_gradients` "
        "inside the function that `strategy.run` runs, and pass the ids as its arguments."
    )

    def initialized(self) -> bool | None:
        return False

    def core_of(self, device: str) -> int:
        raise errors.InvalidInput(
            f"`device`={device!r}: SparseCores take the ids of a core inside `strategy.run` "
            "only. Leave `device` out."
        )


@dataclasses.dataclass
class _Batches:
    enqueued: dict[str | None, collections.deque[dict[str, inputs.OnHost]]]
    looked_up: dict[str | None, collections.deque[dict[str, inputs.PackedIds]]]


class SparseCoreDriver(ReplicaDriver):
    """Runs a plan on SparseCores. The whole step runs inside `strategy.run`.

    On the hardware, an id outside the feature's table silently uses a row of padding or of another
    table; on the software TPU such an id causes an error.

    Args:
        limits: the buffer sizes, as a `SparseCoreLimits` or stock's SparseCoreEmbeddingConfig. None
            means stock's default sizes.

    Raises:
        OutOfOrder: the current strategy is not a TPUStrategy.
    """

    strategies: ClassVar[tuple[type[Strategy], ...]] = topologies.STRATEGIES
    arithmetic = "sparsecore"

    def __init__(self, limits: Object = None) -> None:
        self._strategy = tf.distribute.get_strategy()
        self._topology = topologies.read_topology(self._strategy)
        self._limits = SparseCoreLimits.of(limits)
        self._tables: tuple[DeviceTable, ...] = ()
        self._batches: weakref.WeakKeyDictionary[Object, _Batches] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        cores = len(self._topology.cores)
        return f"<SparseCoreDriver {len(self._tables)} stacks, {cores} cores>"

    @classmethod
    def claims(cls, strategy: Strategy) -> bool:
        return super().claims(strategy) and tf_compat.embedding_hardware(strategy) == "V2"

    def cores(self, count: int | None, hosts: int | None) -> SparseCoreCores:
        return SparseCoreCores(self._topology, count, hosts)

    def configure(self, plan: Plan) -> Op:
        _check_eager()
        _check_not_in_run(self._strategy)
        _check_plan(plan)
        per_core = tf_compat.sparse_cores_of(self._strategy) or DEFAULT_SPARSE_CORES
        cores = SparseCores(len(self._topology.cores), per_core)
        self._tables = tuple(
            DeviceTable(stack, self._strategy, plan.training)
            for stack in stacks_of(plan, cores, self._limits)
        )
        self._plan = plan
        return to_run(None)

    def load(self, tables: Mapping[str, Table]) -> Op:
        return to_run([op for of_stack in self._tables for op in of_stack.load(tables)])

    def retrieve(self, tables: Mapping[str, Table]) -> Op:
        if not self._ready().training:
            return to_run(None)  # Lookups change no row.
        return to_run([op for of_stack in self._tables for op in of_stack.retrieve(tables)])

    def enqueue(self, batch: Batch, training: Tensor | bool, name: str | None = None) -> Op:
        self._ready()
        check_control_flow(tf_compat.tpu_computation_graph())
        (part,) = batch.parts.values()
        stacks = [table.stack for table in self._tables]
        on_host = tf.compat.v1.tpu.outside_compilation(inputs.read, stacks, self._limits, part)
        batches = self._of_core()
        batches.enqueued.setdefault(name, collections.deque()).append(on_host)
        return to_run(None)

    def dequeue(self, name: str | None = None) -> Activations:
        plan, batches = self._ready(), self._of_core()
        on_host = _next(batches.enqueued, name, "No batch is enqueued. Call `enqueue` first.")
        ids = tf.compat.v1.tpu.outside_compilation(inputs.copy_to_device, on_host)
        batches.looked_up.setdefault(name, collections.deque()).append(ids)
        activations: dict[int, Tensor] = {}
        for table in self._tables:
            parameters = table.variables[PARAMETERS].read_value()
            looked_up = passes.look_up(table.stack, self._limits, ids[table.stack.name], parameters)
            activations |= passes.of_features(table.stack, looked_up)
        return [[activations[position] for position in range(len(plan.features))]]

    def send_gradients(self, gradients: Gradients, rates: Rates, name: str | None = None) -> Op:
        self._ready()
        message = "No batch waits for gradients. Call `dequeue` first."
        ids = _next(self._of_core().looked_up, name, message)
        (of_core,) = gradients
        ops = []
        for table in self._tables:
            stack, variables = table.stack, table.variables
            new = passes.updated(
                stack,
                self._limits,
                ids[stack.name],
                passes.of_stack(stack, of_core),
                _rate(stack.tables[0], rates),
                {key: variable.read_value() for key, variable in variables.items()},
            )
            for key in reversed(list(new)):  # Stock also writes slots before parameters.
                ops.append(variables[key].assign(new[key], read_value=False))
        return to_run(ops)

    def _of_core(self) -> _Batches:
        computation = tf_compat.tpu_computation_context()
        if computation is None:
            raise errors.OutOfOrder(
                "SparseCores have no queue of batches. Make this call inside the function that "
                "`strategy.run` runs."
            )
        return self._batches.setdefault(computation, _Batches({}, {}))


def _next(
    queues: Mapping[str | None, collections.deque[_Value]], name: str | None, message: str
) -> _Value:
    queue = queues.get(name)
    if not queue:
        raise errors.OutOfOrder(message)
    return queue.popleft()


def _rate(table: TablePlan, rates: Rates) -> Tensor:
    if table.rate_tag is not None:
        return tf.cast(rates[table.rate_tag], tf.float32)
    return tf.constant(table.optimizer.learning_rate, tf.float32)


def _check_plan(plan: Plan) -> None:
    if plan.out_of_range_ids == "drop":
        raise errors.InvalidSpec(
            "out_of_range_ids='drop' is not possible on SparseCores, which do not check ids. "
            "Remove ids that are out of range in the dataset, " + _HOST
        )
    if not tf_compat.has_ops(soft_sparsecore.KERNELS):
        raise errors.InvalidSpec(
            f"driver='sparsecore': TensorFlow {tf.__version__} has no ops for SparseCores. Use "
            "TensorFlow 2.21, " + _HOST
        )
    for table in plan.tables:
        sparsecore_rules.check(table.name, table.optimizer)
    if plan.pipeline_execution_with_tensor_core:
        _log.warning(
            "pipeline_execution_with_tensor_core=True: on SparseCores only the TPU's compiler can "
            "overlap steps. Therefore a lookup sees all earlier updates."
        )


def _check_eager() -> None:
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise errors.InvalidSpec(
                "driver='sparsecore' works eagerly and in tf.functions, not in a tf.Graph such as "
                "a TPUEstimator's. Migrate the program to TensorFlow 2, or use driver='host'."
            )


def _check_not_in_run(strategy: Strategy) -> None:
    context = tf.distribute.get_replica_context()
    if context is not None and context.strategy is strategy:
        raise errors.OutOfOrder(
            "The engine is not built yet. It gets its first batch inside `strategy.run`, where the "
            "variables of SparseCores cannot be made. Call `build` first, in `strategy.scope()`, "
            "or pass `batch_size` to the Keras layer."
        )


SPARSECORE: Final = "sparsecore"


def driver_for_sparsecore(limits: Object = None) -> Driver:
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        say = log.warning if SparseCoreLimits.of(limits).allow_id_dropping else log.info
        if limits is not None:
            say("`sparse_core_limits` have no effect on a host: no id is dropped or refused.")
        return HostDriver(arithmetic=SPARSECORE)
    if not SparseCoreDriver.claims(strategy):
        raise errors.InvalidSpec(
            "arithmetic='sparsecore': the TPU has no SparseCores, but embedding hardware of the "
            "first generation. Leave `arithmetic` out, or use a TPU v5p, v6e or TPU7x."
        )
    return SparseCoreDriver(limits)


def check_limits(arithmetic: str | None, limits: Object) -> None:
    if limits is not None and arithmetic != SPARSECORE:
        raise errors.InvalidSpec(
            f"`sparse_core_limits` are given, but the arithmetic is {arithmetic!r}, which does not "
            "limit the number of ids. Give arithmetic='sparsecore', or leave the limits out."
        )


def accumulating(spec: EngineSpec) -> EngineSpec:
    return dataclasses.replace(spec, tables=tuple(map(_accumulating, spec.tables)))


def _accumulating(table: TableSpec) -> TableSpec:
    optimizer = table.optimizer
    if optimizer is None or optimizer.use_gradient_accumulation:
        return table
    log.warning(
        "Table %r: use_gradient_accumulation=False is ignored, as SparseCores ignore it: a row is "
        "updated once in a step, with the sum of its gradients.",
        table.name,
    )
    return dataclasses.replace(
        table, optimizer=dataclasses.replace(optimizer, use_gradient_accumulation=True)
    )
