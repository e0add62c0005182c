"""The drivers for parameter servers: one for graphs with ops on all tasks, one for a strategy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.backends.host.batch_queue import BatchQueue, BatchQueues, GraphBatchQueue
from tf2_engine.backends.host.driver import HostDriver, check_rules
from tf2_engine.backends.host.kernels import KernelSet
from tf2_engine.backends.interface import Activations, Gradients, Rates, SynchronousDriver, Update
from tf2_engine.backends.ps.cores import PsCores, StrategyCores
from tf2_engine.backends.ps.kernels import LockedKernels, ServerKernels
from tf2_engine.backends.ps.lanes import Lanes
from tf2_engine.backends.ps.messages import WIRES, Messages, Wire
from tf2_engine.batch import Batch
from tf2_engine.graph_mode import run_if, to_run
from tf2_engine.placement import SMALL_TABLE_BYTES, Layout, Servers
from tf2_engine.plan import Plan
from tf2_engine.types import Op, Tensor

NativeTasks: TypeAlias = Callable[[], Collection[str]]
"""A function that returns the devices of the tasks that have the native ops."""


class PsDriver(HostDriver):
    """Keeps tables on parameter servers and runs the cores on workers.

    The worker of a core fetches and combines the rows; a parameter server updates the rows and
    slots that it stores. The results equal those of `HostDriver(native=False)` with the same number
    of cores, except that powers (FTRL, AdagradMomentum) may differ by a unit in the last place.
    With pipelining, each core's part of the pending update waits on its worker.

    Args:
        workers: the devices of the workers, such as "/job:worker/task:0/device:CPU:0". Each worker
            has one core, or several consecutive cores if `num_cores` is larger.
        servers: the devices of the parameter servers.
        whole_up_to: a table of up to this many bytes, slots included, is stored on one server.
        wire: the form in which gradients are sent; see `messages`. "summed" rounds differently with
            several cores and gradient accumulation.
        native: returns the devices that have the native ops.
    """

    def __init__(
        self,
        workers: Sequence[str],
        servers: Sequence[str],
        *,
        layout: Layout = "div",
        whole_up_to: int = SMALL_TABLE_BYTES,
        wire: Wire = "smallest",
        native: NativeTasks | None = None,
    ) -> None:
        super().__init__(native=False)
        for name, devices in (("workers", workers), ("servers", servers)):
            if not devices:
                raise errors.InvalidSpec(f"`{name}` must name at least one device, got none.")
        if wire not in WIRES:
            names = ", ".join(map(repr, WIRES))
            raise errors.InvalidSpec(f"`wire` must be one of {names}, got {wire!r}.")
        self._workers = tuple(workers)
        self.servers = Servers(tuple(servers), layout, whole_up_to)
        self._wire: Wire = wire
        self._tasks = native
        self._cores: PsCores | None = None

    def __repr__(self) -> str:
        kernels = self._configured.kernels if self._configured else ServerKernels
        return (
            f"<PsDriver {len(self._tables)} tables, {len(self._workers)} workers, "
            f"{len(self.servers.devices)} servers, {self.servers.layout}, {kernels.name}>"
        )

    def cores(self, count: int | None, hosts: int | None) -> PsCores:
        self._cores = PsCores(count, hosts, self._workers, self.servers)
        return self._cores

    def _kernels_for(self, plan: Plan) -> KernelSet:
        assert self._cores is not None
        native = frozenset() if self._tasks is None else frozenset(self._tasks())
        return ServerKernels(plan, self._tables, self._cores, wire=self._wire, native=native)


class StrategyPsDriver(HostDriver):
    """Tables on the parameter servers of a `tf.distribute.ParameterServerStrategy`.

    The worker that runs a scheduled tf.function gets rows from the servers and sends gradients
    back. Each server updates each row of a function once, one function after the other.

    Args:
        layout: see `placement`. tf.train.Checkpoint cannot save "octaves".
        whole_up_to: as in `PsDriver`.
    """

    strategies = (tf.distribute.ParameterServerStrategy,)

    _functions: int | None = None  # of a synchronous step

    def __init__(self, *, layout: Layout = "div", whole_up_to: int = SMALL_TABLE_BYTES) -> None:
        super().__init__(native=False)
        self._layout: Layout = layout
        self._whole_up_to = whole_up_to
        self._cores: StrategyCores | None = None

    def __repr__(self) -> str:
        servers = len(self._cores.servers.devices) if self._cores else 0
        kind = "asynchronous" if self._functions is None else f"synchronous={self._functions}"
        return (
            f"<StrategyPsDriver {len(self._tables)} tables, {servers} servers, {self._layout}, "
            f"{kind}>"
        )

    def synchronous(self, count: int) -> SynchronousPsDriver:
        return SynchronousPsDriver(count, layout=self._layout, whole_up_to=self._whole_up_to)

    def cores(self, count: int | None, hosts: int | None) -> StrategyCores:
        self._cores = StrategyCores(
            count,
            hosts,
            layout=self._layout,
            whole_up_to=self._whole_up_to,
            synchronous=self._functions,
        )
        return self._cores

    def _kernels_for(self, plan: Plan) -> KernelSet:
        assert self._cores is not None
        return LockedKernels(plan, self._tables, self._cores)

    def _queues_for(self, plan: Plan, kernels: KernelSet) -> BatchQueues:
        return _TracedQueues(lambda: GraphBatchQueue(1))


class SynchronousPsDriver(StrategyPsDriver, SynchronousDriver):
    """Tables on parameter servers, which apply the gradients of `count` function calls together.

    The results equal those of `HostDriver(native=False)` with `count` cores; see `PsDriver`.
    """

    _kernels: ServerKernels
    _lanes: Lanes | None = None
    _apply_all: Callable[..., None]

    def __init__(self, count: int, *, layout: Layout, whole_up_to: int) -> None:
        super().__init__(layout=layout, whole_up_to=whole_up_to)
        self._functions = self._count = count

    def configure(self, plan: Plan) -> Op:
        op = super().configure(plan)
        if plan.training:
            assert self._cores is not None
            self._lanes = Lanes(self._cores.servers.devices, self._count)
            self._apply_all = self._apply_function(plan)
        return op

    def look_up(
        self, batch: Batch, training: bool | None, name: str | None = None
    ) -> tuple[Activations, Update]:
        activations, _ = super().look_up(batch, training, name)
        return activations, _refuse_update

    def collect_gradients(
        self, core: Tensor | int, gradients: Gradients, name: str | None = None
    ) -> Op:
        configured = self._ready()
        check_rules(configured.plan)
        assert self._lanes is not None
        lanes, kernels = self._lanes, self._kernels
        with tf.name_scope(name or "collect_gradients"):
            step = configured.queues.named(name).take_looked_up()

            def put() -> Op:
                (messages,) = kernels.messages(step.occurrences, gradients)
                return lanes.put(core, messages)

            return to_run(run_if(step.training, put))

    def apply_collected(self, rates: Rates) -> Op:
        assert self._lanes is not None
        missing = self._lanes.missing()
        if missing:
            raise errors.OutOfOrder(
                f"`apply_step` is not possible: {_cores(missing)} of {self._count} sent no "
                "gradients. In each step schedule a function for every core that calls "
                "`apply_gradients(gradients, core=...)`, and call `join` before `apply_step`."
            )
        self._apply_all(self._lanes.take(self._kernels.servers_in_use()), list(rates))
        self._lanes.begin_step()

    def reset_batches(self) -> Op:
        if self._lanes is not None:
            if not tf.executing_eagerly():
                raise errors.OutOfOrder(
                    "`reset_batches` is called inside a tf.function, by one core of a synchronous "
                    "step, but it drops the batches of all cores. Call it on the coordinator, "
                    "outside the function."
                )
            self._lanes.reset()
        return super().reset_batches()

    def _kernels_for(self, plan: Plan) -> KernelSet:
        assert self._cores is not None
        # The coordinator applies the steps one after the other, so no lock is needed.
        self._kernels = ServerKernels(plan, self._tables, self._cores)
        return self._kernels

    def _apply_function(self, plan: Plan) -> Callable[..., None]:
        kernels = self._kernels
        message = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.float32))
        of_core = dict.fromkeys(kernels.servers_in_use(), message)
        rates = [tf.TensorSpec([], tf.float32)] * len(plan.dynamic_rates)

        def apply(messages: Sequence[Messages], rates: Rates) -> None:
            kernels.apply(messages, rates)

        signature = ([of_core] * self._count, rates)
        function: Callable[..., None] = tf.function(
            apply, input_signature=signature, autograph=False
        )
        return function


class _TracedQueues(BatchQueues):
    """The queues of functions that a ClusterCoordinator schedules, one set per trace.

    Workers run functions at the same time, so with a shared queue a function could take the batch
    of another function.
    """

    def named(self, name: str | None) -> BatchQueue:
        if not tf.inside_function():
            raise errors.OutOfOrder(
                "Under ParameterServerStrategy `enqueue`, `dequeue` and `apply_gradients` of a "
                "step are called in one tf.function, which `ClusterCoordinator.schedule` gives to "
                "a worker. To look up without a step, use `embedding_lookup`."
            )
        return super().named(name)


def _refuse_update(gradients: Gradients, rates: Rates) -> Op:
    raise errors.OutOfOrder(
        "The gradients of `differentiable_lookup` do not state to which core of a synchronous step "
        "they belong. Use `enqueue`, `dequeue` and `apply_gradients(gradients, core=...)`."
    )


def _cores(numbers: list[int]) -> str:
    word = "core" if len(numbers) == 1 else "cores"
    return f"{word} {', '.join(map(str, numbers))}"
