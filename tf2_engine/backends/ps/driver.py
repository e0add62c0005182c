"""The drivers for parameter servers: one for graphs with ops on all tasks, one for a strategy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.backends.host.batch_queue import BatchQueue, BatchQueues, GraphBatchQueue
from tf2_engine.backends.host.driver import HostDriver, check_rules
from tf2_engine.backends.host.kernels import KernelSet
from tf2_engine.backends.interface import Activations, Gradients, Rates, SynchronousDriver, Update
from tf2_engine.backends.ps.cores import PsCores, StrategyCores
from tf2_engine.backends.ps.kernels import LockedKernels, ServerKernels
from tf2_engine.backends.ps.messages import WIRES, Message, Messages, Wire
from tf2_engine.batch import Batch
from tf2_engine.graph_mode import run_after, run_if, to_run
from tf2_engine.placement import SMALL_TABLE_BYTES, Layout, Servers
from tf2_engine.plan import Plan
from tf2_engine.types import Op, Tensor, Variable

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
            has one core, or several consecutive cores if there are more cores than workers.
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
    back. A server applies the gradients of one function call at a time, and updates each row once
    per call.

    Args:
        layout: see `placement`. tf.train.Checkpoint cannot save "octaves".
        whole_up_to: as in `PsDriver`.
    """

    strategies = (tf.distribute.ParameterServerStrategy,)

    _functions: int | None = None  # the number of functions per synchronous step

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
                "gradients. In each step, schedule one function per core. Each function must call "
                "`apply_gradients(gradients, core=...)`. Call `join` before `apply_step`."
            )
        self._apply_all(self._lanes.take(self._kernels.servers_in_use()), list(rates))
        self._lanes.begin_step()

    def reset_batches(self) -> Op:
        if self._lanes is not None:
            if not tf.executing_eagerly():
                raise errors.OutOfOrder(
                    "`reset_batches` drops the batches of all cores, but one core of a synchronous "
                    "step calls it inside a tf.function. Call it on the coordinator, outside the "
                    "function."
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
                "Under ParameterServerStrategy, call `enqueue`, `dequeue` and `apply_gradients` of "
                "a step in one tf.function, and pass it to `ClusterCoordinator.schedule`. To look "
                "up without a step, use `embedding_lookup`."
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


RUNS_OF_A_CORE = 16
"""How often a core may run per step, repeats included. After more runs, a step was not applied."""

_HIGHEST = 2**63 - 1


class Lanes:
    """Keeps the gradients of all cores of a synchronous step on the servers until they are applied.

    A ClusterCoordinator repeats a function when its worker is lost, but the lost run may still send
    gradients. Therefore every run draws a new number, which it publishes once all servers have the
    run's gradients. For each core, a step uses the gradients with the highest published number. The
    numbers are stored on the first of the `devices`.
    """

    def __init__(self, devices: Sequence[str], num_cores: int) -> None:
        self._devices = tuple(devices)
        self._num_cores = num_cores
        self._capacity = RUNS_OF_A_CORE * num_cores
        self._queues: list[tf.queue.FIFOQueue] = []
        with tf.init_scope():
            for device in devices:
                with tf.device(device):
                    # The first vector has the core and the run's number. Ids and gradients follow.
                    dtypes = [tf.int64, tf.int64, tf.float32]
                    self._queues.append(tf.queue.FIFOQueue(self._capacity, dtypes))
            with tf.device(self._devices[0]):
                self._next = _numbers("next", [], 0)
                self._first_of_step = _numbers("first_of_step", [], 0)
                self._complete = _numbers("complete", [num_cores], -1)
        self._take = tf.function(self._take_from, autograph=False)

    def put(self, core: Tensor | int, messages: Messages) -> Op:
        position: Tensor = tf.cast(core, tf.int64)
        check = tf.debugging.Assert(
            tf.logical_and(position >= 0, position < self._num_cores),
            [
                f"`core` must be from 0 to {self._num_cores - 1}, the cores of a synchronous step, "
                "got",
                position,
            ],
        )
        with run_after([check]), tf.device(self._devices[0]):
            number = tf.raw_ops.ResourceCountUpTo(
                resource=self._next.handle, limit=_HIGHEST, T=tf.int64
            )
        puts = [self._put_on(server, position, number, messages[server]) for server in messages]
        with run_after(puts), tf.device(self._devices[0]):
            # An abandoned run may publish after the run that replaced it.
            return self._complete.scatter_max(tf.IndexedSlices(number, position))

    def missing(self) -> list[int]:
        first = int(self._first_of_step)
        return [core for core, number in enumerate(self._complete.numpy()) if number < first]

    def take(self, servers: Sequence[int]) -> list[Messages]:
        """Removes this step's messages for the given servers; returns one dict per core.

        Call it eagerly, after `missing` has returned an empty list. The tensors stay on the
        servers.
        """
        complete = self._complete.numpy()
        by_server = {server: self._of_step(server, complete) for server in servers}
        return [
            {server: messages[core] for server, messages in by_server.items()}
            for core in range(self._num_cores)
        ]

    def begin_step(self) -> None:
        with tf.device(self._devices[0]):
            self._first_of_step.assign(self._next)

    def reset(self) -> None:
        for server, queue in enumerate(self._queues):
            self._take(server, int(queue.size()))
        self.begin_step()

    def _put_on(self, server: int, core: Tensor, number: Tensor, message: Message) -> Op:
        queue = self._queues[server]
        with tf.device(self._devices[server]):
            room = tf.debugging.Assert(
                queue.size() < self._capacity,
                [
                    f"Gradients were sent {self._capacity} times and not applied. Call "
                    f"`apply_step` after each step, that is, after every {self._num_cores} "
                    "functions."
                ],
            )
            with run_after([room]):
                return queue.enqueue([tf.stack([core, number]), *message])

    def _of_step(self, server: int, complete: Sequence[int]) -> dict[int, Message]:
        keys, messages = self._take(server, int(self._queues[server].size()))
        return {
            int(core): message
            for (core, number), message in zip(keys.numpy(), messages, strict=True)
            if number == complete[core]
        }

    def _take_from(self, server: int, count: int) -> tuple[Tensor, list[Message]]:
        keys, messages = [tf.zeros([0, 2], tf.int64)], []
        with tf.device(self._devices[server]):
            for _ in range(count):
                key, ids, gradients = self._queues[server].dequeue()
                keys.append(tf.reshape(key, [1, 2]))
                messages.append((tf.ensure_shape(ids, [None]), tf.ensure_shape(gradients, [None])))
            return tf.concat(keys, 0), messages


def _numbers(name: str, shape: Sequence[int], value: int) -> Variable:
    return tf_compat.plain_variable(
        initial_value=lambda: tf.fill(shape, tf.constant(value, tf.int64)),
        shape=shape,
        dtype=tf.int64,
        trainable=False,
        name=f"lanes/{name}",
    )
