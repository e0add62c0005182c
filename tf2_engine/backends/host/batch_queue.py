"""Queues of batches that wait for a lookup or for gradients, and the update that pipelining delays.

While a `tf.Graph` is built, a batch waits in a Python list. Otherwise one function may enqueue a
batch and another function dequeue it. Therefore each core has a queue resource, whose contents do
not change if a function is traced again or its tracing fails.

For each name, at most one batch may wait for gradients, except within a single trace or graph. If a
second batch is looked up, the first step has failed, and the next gradients would be paired with
the wrong batch.
"""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.backends.host.kernels import KernelSet, StepOccurrences
from tf2_engine.backends.interface import Gradients, Rates
from tf2_engine.batch import Occurrences
from tf2_engine.graph_mode import building_graph, run_after, run_if
from tf2_engine.plan import FeaturePlan, Plan
from tf2_engine.types import DType, Graph, Object, Op, Tensor

MAX_IN_FLIGHT = 64
"""How many batches may wait at one stage. If more wait, a loop forgot to dequeue them."""

_NONE_ENQUEUED = "`dequeue` is not possible: no batch is enqueued. Call `enqueue` first."
_NONE_LOOKED_UP = (
    "`apply_gradients` is not possible: no batch waits for gradients. Call `dequeue` first."
)
_GRADIENTS_MISSING = (
    "`dequeue` of a second training batch is not possible: the gradients of the previous batch "
    "never came, for instance because of an exception between its `dequeue` and its "
    "`apply_gradients`. Drop the waiting batches with `reset_batches`, or run each step inside "
    "`with embedding.step():`, which drops the batches of a failed step. Enqueue batches without "
    "gradients with training=False, and give each of several overlapping batches its own `name`."
)


@dataclasses.dataclass(frozen=True)
class Step:
    """The occurrences of a global batch, and whether gradients will follow.

    The update waits for the ops in `after`, because gradients that do not depend on the lookup may
    be ready before the lookup has run.
    """

    occurrences: StepOccurrences
    training: Tensor | bool
    after: tuple[Op, ...] = ()


Apply = Callable[[Step, Gradients, Rates], Op]
"""A function that updates the tables, given a step, its gradients and the learning rates."""


class GraphBatchQueue:
    """The queue of batches while a graph is built."""

    def __init__(self, num_cores: int) -> None:
        self._num_cores = num_cores
        self._waiting: weakref.WeakKeyDictionary[
            Graph, dict[Hashable, collections.deque[Object]]
        ] = weakref.WeakKeyDictionary()

    def enqueue(self, core: int, occurrences: Sequence[Occurrences], training: Tensor | bool) -> Op:
        self._queue(core).append((occurrences, training))

    def take_enqueued(self) -> Step:
        queues = [self._queue(core) for core in range(self._num_cores)]
        if not all(queues):
            raise errors.OutOfOrder(_NONE_ENQUEUED)
        parts = [queue.popleft() for queue in queues]
        return Step([part[0] for part in parts], parts[0][1])

    def keep(self, step: Step) -> Op:
        # If `training` is only known at run time, the update is conditional.
        if step.training is not False:
            self._queue("looked up").append(step)

    def take_looked_up(self) -> Step:
        queue = self._queue("looked up")
        if not queue:
            raise errors.OutOfOrder(_NONE_LOOKED_UP)
        return queue.popleft()

    def reset(self) -> Op:
        self._waiting.pop(tf.compat.v1.get_default_graph(), None)

    def _queue(self, key: Hashable) -> collections.deque[Object]:
        queues = self._waiting.setdefault(tf.compat.v1.get_default_graph(), {})
        return queues.setdefault(key, collections.deque())


class ResourceBatchQueue:
    """A queue that works across functions: one function enqueues a batch, another takes it."""

    def __init__(self, plan: Plan, kernels: KernelSet) -> None:
        self._layout = _Layout(plan, kernels)
        device = kernels.queue_device
        self._enqueued = [
            Fifo(self._layout.dtypes(1), "enqueued", device) for _ in range(plan.num_cores)
        ]
        self._looked_up = Fifo(self._layout.dtypes(plan.num_cores), "looked up", device)
        self._traces: weakref.WeakKeyDictionary[Graph, _Trace] = weakref.WeakKeyDictionary()

    def enqueue(self, core: int, occurrences: Sequence[Occurrences], training: Tensor | bool) -> Op:
        op = self._enqueued[core].put(self._layout.pack(Step([occurrences], training)))
        if core == 0:
            self._trace().enqueued.append(training is not False)
        return op

    def take_enqueued(self) -> Step:
        """Takes the oldest batch that has not been looked up.

        If the oldest batch is for training, and an earlier batch still waits for gradients, an
        error is raised and the oldest batch stays in the queue.
        """
        packed = _take_from_all(self._enqueued, _NONE_ENQUEUED)
        parts = [self._layout.unpack(part, 1) for part in packed]
        allowed = self._trace().look_up()
        training = parts[0].training
        others_wait = self._looked_up.queue.size() > min(allowed, MAX_IN_FLIGHT - 1)

        def refuse() -> Op:
            moved: list[Tensor] = []
            for fifo, part in zip(self._enqueued, packed, strict=True):
                with run_after(moved):
                    moved.append(fifo.put_first(part))
            # This condition is always false. It depends on the moved batches, so the check fails
            # only after the batches were moved.
            holds = tf.less(tf.add_n([tf.cast(count, tf.int64) for count in moved]), 0)
            return tf.group(*_check(holds, _GRADIENTS_MISSING))

        # Later ops wait until the check above has passed.
        with run_after([run_if(tf.logical_and(training, others_wait), refuse)]):
            training = tf.identity(training)
        return Step([part.occurrences[0] for part in parts], training)

    def keep(self, step: Step) -> Op:
        return run_if(step.training, lambda: self._looked_up.put(self._layout.pack(step)))

    def reset(self) -> Op:
        return [fifo.clear() for fifo in (*self._enqueued, self._looked_up)]

    def take_looked_up(self) -> Step:
        self._trace().send_gradients()
        # In a function, reading the sizes orders this call after `enqueue`. A batch that was
        # enqueued before therefore stays in its queue, even if this call finds nothing to take.
        before = [] if tf.executing_eagerly() else [queue.some() for queue in self._enqueued]
        with tf.control_dependencies(before):
            (packed,) = _take_from_all([self._looked_up], _NONE_LOOKED_UP)
        step = self._layout.unpack(packed, len(self._enqueued))
        # Later ops wait until a batch is found. Only training batches are kept, so `training` is
        # True.
        return dataclasses.replace(step, after=(step.training,), training=True)

    def _trace(self) -> _Trace:
        if tf.executing_eagerly():
            return _Trace()
        return self._traces.setdefault(_outermost(tf.compat.v1.get_default_graph()), _Trace())


@dataclasses.dataclass
class _Trace:
    enqueued: collections.deque[bool] = dataclasses.field(default_factory=collections.deque)
    looked_up: int = 0

    def look_up(self) -> int:
        before = self.looked_up
        self.looked_up += self.enqueued.popleft() if self.enqueued else True
        return before

    def send_gradients(self) -> None:
        self.looked_up = max(0, self.looked_up - 1)


BatchQueue = GraphBatchQueue | ResourceBatchQueue


class BatchQueues:
    """Maps batch names to queues, which are created on first use."""

    def __init__(self, make: Callable[[], BatchQueue]) -> None:
        self._make = make
        self._by_name: dict[str | None, BatchQueue] = {}

    def named(self, name: str | None) -> BatchQueue:
        if name not in self._by_name:
            with tf.init_scope():
                self._by_name[name] = self._make()
        return self._by_name[name]

    def reset(self) -> Op:
        return [queue.reset() for queue in self._by_name.values()]


class QueuesOfEngine(BatchQueues):
    """The queues of an engine, which works either in one graph or outside of graphs."""

    def __init__(self, plan: Plan, kernels: KernelSet) -> None:
        in_graph = self._in_graph = building_graph()
        super().__init__(
            lambda: (
                GraphBatchQueue(plan.num_cores) if in_graph else ResourceBatchQueue(plan, kernels)
            )
        )
        self.named(None)

    def named(self, name: str | None) -> BatchQueue:
        self._check()
        return super().named(name)

    def reset(self) -> Op:
        self._check()
        return super().reset()

    def _check(self) -> None:
        if building_graph() != self._in_graph:
            raise errors.OutOfOrder(
                "The engine was built inside a tf.Graph but is used outside, or the other way "
                "round. Build another engine here."
            )


class PendingUpdate:
    """The batch, gradients and rates of the update, if any, that pipelining still has to apply.

    Each group of `KernelSet.together` keeps its part in a queue resource on the group's device.
    """

    def __init__(self, plan: Plan, kernels: KernelSet, apply: Apply) -> None:
        self._plan, self._kernels = plan, kernels
        self._layout = _Layout(plan, kernels)
        self._apply = apply
        self._groups = kernels.together(plan.num_cores)
        self._fifos: list[Fifo] = []
        for cores in self._groups:
            num_floats = len(plan.features) * len(cores) + len(plan.dynamic_rates)
            dtypes = self._layout.dtypes(len(cores)) + [tf.float32] * num_floats
            with kernels.on_core(cores[0]):
                self._fifos.append(Fifo(dtypes, "pending", kernels.queue_device))

    def put(self, step: Step, gradients: Gradients, rates: Rates) -> Op:
        # Flushing keeps at most one update pending, even when batches overlap. If a gradient
        # cannot be computed, no group may put its part.
        others = gradients if len(self._groups) > 1 else ()
        with run_after([self.flush(), *(each for core in others for each in core)]):
            puts = []
            for cores, fifo in zip(self._groups, self._fifos, strict=True):
                with self._kernels.on_core(cores[0]):
                    part = Step([step.occurrences[core] for core in cores], step.training)
                    flat = [gradient for core in cores for gradient in gradients[core]]
                    puts.append(fifo.put([*self._layout.pack(part), *flat, *rates]))
        return puts[0] if len(puts) == 1 else tf.group(*puts)

    def flush(self) -> Op:
        with self._kernels.on_core(self._groups[0][0]):
            is_pending = self._fifos[0].some()
        return run_if(is_pending, self._apply_pending)

    def drop(self) -> list[Op]:
        ops = []
        for cores, fifo in zip(self._groups, self._fifos, strict=True):
            with self._kernels.on_core(cores[0]):
                ops.append(fifo.clear())
        return ops

    def _take(self) -> list[list[Tensor]]:
        parts = []
        for cores, fifo in zip(self._groups, self._fifos, strict=True):
            with self._kernels.on_core(cores[0]):
                parts += _take_from_all([fifo], "No update is pending.")
        return parts

    def _apply_pending(self) -> Op:
        plan, width = self._plan, len(self._plan.features)
        occurrences: list[Sequence[Occurrences]] = []
        gradients: list[list[Tensor]] = []
        rates: list[Tensor] = []
        for cores, tensors in zip(self._groups, self._take(), strict=True):
            size = len(self._layout.dtypes(len(cores)))
            end = size + width * len(cores)
            occurrences += self._layout.unpack(tensors[:size], len(cores)).occurrences
            gradients += [tensors[start : start + width] for start in range(size, end, width)]
            rates = rates or tensors[end:]
        for core in gradients:
            for gradient, feature in zip(core, plan.features, strict=True):
                gradient.set_shape([*feature.output_shape, feature.table.dim])
        return self._apply(Step(occurrences, True), gradients, rates)


class Fifo:
    """A first-in, first-out queue of tuples of tensors."""

    def __init__(self, dtypes: Sequence[DType], name: str, device: str) -> None:
        self._name = name
        with tf.device(device):
            self.queue = tf.queue.FIFOQueue(MAX_IN_FLIGHT, list(dtypes))

    def put(self, tensors: Sequence[Tensor]) -> Op:
        has_room = _check(
            self.queue.size() < MAX_IN_FLIGHT,
            f"{MAX_IN_FLIGHT} batches are {self._name} and none was taken. Call `dequeue` for each "
            "enqueued batch, and `apply_gradients` for each training batch. `reset_batches` drops "
            "the waiting batches.",
        )
        with tf.control_dependencies(has_room):
            return self.queue.enqueue(list(tensors))

    def put_first(self, tensors: Sequence[Tensor]) -> Tensor:
        waiting = self.queue.size()
        with run_after([waiting]):
            first = self.queue.enqueue(list(tensors))

        def to_the_end() -> Op:
            return self.queue.enqueue(self.queue.dequeue())

        with run_after([first]):
            return _repeat(waiting, to_the_end)

    def clear(self) -> Op:
        return _repeat(self.queue.size(), self.queue.dequeue)

    def some(self) -> Tensor:
        return self.queue.size() > 0


@dataclasses.dataclass(frozen=True)
class _Layout:
    plan: Plan
    kernels: KernelSet

    def dtypes(self, num_cores: int) -> list[DType]:
        of_feature = [tf.int64, tf.int64, tf.float32, tf.int64]
        return of_feature * (len(self.plan.features) * num_cores) + [tf.bool]

    def pack(self, step: Step) -> list[Tensor]:
        flat: list[Tensor] = []
        for core in step.occurrences:
            for occurrences in core:
                flat += self.kernels.as_tensors(occurrences)
        return [*flat, tf.convert_to_tensor(step.training, tf.bool)]

    def unpack(self, flat: Sequence[Tensor], num_cores: int) -> Step:
        tensors = iter(flat)
        cores = [
            [self._next_occurrences(feature, tensors) for feature in self.plan.features]
            for _ in range(num_cores)
        ]
        training = next(tensors)
        training.set_shape([])
        return Step(cores, training)

    def _next_occurrences(self, feature: FeaturePlan, tensors: Iterator[Tensor]) -> Occurrences:
        ids, cell, gain, num_cells = (next(tensors) for _ in range(4))
        for tensor in (ids, gain) if self.kernels.keeps_splits(feature) else (ids, cell, gain):
            tensor.set_shape([None])
        num_cells.set_shape([])
        return Occurrences(feature, ids, cell, gain, num_cells)


def _take_from_all(fifos: Sequence[Fifo], message: str) -> list[list[Tensor]]:
    holds = fifos[0].some()
    for fifo in fifos[1:]:
        holds = tf.logical_and(holds, fifo.some())
    oldest = []
    with tf.control_dependencies(_check(holds, message)):
        for fifo in fifos:
            tensors = fifo.queue.dequeue()
            oldest.append(list(tensors) if isinstance(tensors, (list, tuple)) else [tensors])
    return oldest


def _repeat(count: Tensor, action: Callable[[], Op]) -> Tensor:
    if tf.executing_eagerly():
        for _ in range(int(count)):
            action()
        return count

    def body(number: Tensor) -> tuple[Tensor]:
        with run_after(tf.nest.flatten(action())):
            return (number + 1,)

    start = tf.constant(0, count.dtype)
    (done,) = tf.while_loop(lambda number: number < count, body, (start,), parallel_iterations=1)
    done.set_shape([])
    return done


def _outermost(graph: Graph) -> Graph:
    while graph.outer_graph.building_function:
        graph = graph.outer_graph
    return graph


def _check(holds: Tensor, message: str) -> list[Op]:
    if tf.executing_eagerly():
        if not bool(holds):
            raise errors.OutOfOrder(message)
        return []
    check = tf.debugging.Assert(holds, [message])
    return [] if check is None else [check]
