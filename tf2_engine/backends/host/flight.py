"""Batches in flight, held where the step runs.

While a `tf.Graph` is built, a batch is a set of tensors of that graph and waits in a list kept
per graph: a later call in the same graph takes it, and an abandoned graph takes its batches with
it. Eagerly and in tf.functions, one function may enqueue and another dequeue, so a batch waits in
queue resources: tracing a function any number of times, or failing to, changes nothing.

Each core has a lane of its own in which it enqueues; a batch is complete when every lane has one.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors, phase
from tf2_engine.batch import Occurrences
from tf2_engine.phase import Stage
from tf2_engine.plan import Plan

MAX_IN_FLIGHT = 64
"""More batches than this waiting at one stage is a loop that forgot to dequeue."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """One global batch.

    Attributes:
        occurrences: per core, per feature.
        training: whether gradients will come back; a bool or a scalar bool tensor.
        after: while a graph is built, what must have run before the batch's update: its lookups
            need not be inputs of its gradients.
    """

    occurrences: tuple[tuple[Occurrences, ...], ...]
    training: Any
    after: tuple[Any, ...] = ()


class GraphFlight:
    """Batches of the graphs under construction."""

    def __init__(self, plan: Plan) -> None:
        self._num_cores = plan.num_cores
        self._waiting: weakref.WeakKeyDictionary[Any, dict[Any, deque[Any]]] = (
            weakref.WeakKeyDictionary()
        )

    def enqueue(self, core: int, occurrences: tuple[Occurrences, ...], training: Any) -> Any:
        """Lets one core's part of a batch wait."""
        self._lane(core).append((occurrences, training))

    def take_enqueued(self) -> Batch:
        """Returns the oldest batch that was not looked up.

        Raises:
            OutOfOrder: a core has none.
        """
        lanes = [self._lane(core) for core in range(self._num_cores)]
        if not all(lanes):
            raise phase.refuse("dequeue")
        parts = [lane.popleft() for lane in lanes]
        return Batch(tuple(part[0] for part in parts), parts[0][1])

    def keep(self, batch: Batch) -> Any:
        """Lets a batch wait for its gradients."""
        self._lane(Stage.LOOKED_UP).append(batch)

    def take_looked_up(self) -> Batch:
        """Returns the oldest batch that waits for gradients.

        Raises:
            OutOfOrder: none does.
        """
        waiting = self._lane(Stage.LOOKED_UP)
        if not waiting:
            raise phase.refuse("apply_gradients")
        return waiting.popleft()

    def _lane(self, key: Any) -> deque[Any]:
        lanes = self._waiting.setdefault(tf.compat.v1.get_default_graph(), {})
        return lanes.setdefault(key, deque())


class QueueFlight:
    """Batches that one function enqueues and another, or the same, takes; see `pack`."""

    def __init__(self, plan: Plan, compact: Sequence[bool]) -> None:
        self._plan = plan
        self._compact = compact
        part = _occurrence_dtypes(plan, 1)
        self._lanes = [Fifo(part, "enqueued") for _ in range(plan.num_cores)]
        self._looked_up = Fifo(batch_dtypes(plan), "looked up")

    def enqueue(self, core: int, occurrences: tuple[Occurrences, ...], training: Any) -> Any:
        """Lets one core's part of a batch wait; see `GraphFlight`."""
        return self._lanes[core].put(pack(Batch((occurrences,), training), self._compact))

    def take_enqueued(self) -> Batch:
        """Returns the oldest batch that was not looked up; see `GraphFlight`."""
        # Before the batch is taken: one that cannot be kept for its gradients stays where it is.
        with tf.control_dependencies(self._looked_up.check_room()):
            taken = take_from_all(self._lanes, lambda: phase.refuse("dequeue"))
        parts = [unpack(self._plan, part, 1) for part in taken]
        return Batch(tuple(part.occurrences[0] for part in parts), parts[0].training)

    def keep(self, batch: Batch) -> Any:
        """Lets a batch wait for its gradients."""
        return self._looked_up.put(pack(batch, self._compact))

    def take_looked_up(self) -> Batch:
        """Returns the oldest batch that waits for gradients; see `GraphFlight`."""
        # In a function, a batch that was enqueued before waits even if there is nothing to take
        # here: to read how many wait comes after the enqueueing, and taking comes after the read.
        before = [] if tf.executing_eagerly() else [lane.some() for lane in self._lanes]
        with tf.control_dependencies(before):
            (taken,) = take_from_all([self._looked_up], lambda: phase.refuse("apply_gradients"))
        batch = unpack(self._plan, taken, self._plan.num_cores)
        # Nothing may happen before it is certain that there is a batch.
        return dataclasses.replace(batch, after=(batch.training,))


class Fifo:
    """A first-in, first-out queue of tuples of tensors, as a resource."""

    def __init__(self, dtypes: Sequence[tf.DType], name: str) -> None:
        self._name = name
        with tf.device("CPU:0"):
            self.queue = tf.queue.FIFOQueue(MAX_IN_FLIGHT, list(dtypes))

    def put(self, tensors: Sequence[Any]) -> Any:
        """Appends; returns the op.

        Raises:
            OutOfOrder: too many wait.
        """
        with tf.control_dependencies(self.check_room()):
            return self.queue.enqueue(list(tensors))

    def check_room(self) -> list[Any]:
        """Checks that one more may wait; returns the ops to wait for.

        Raises:
            OutOfOrder: too many wait.
        """
        return _check(
            self.queue.size() < MAX_IN_FLIGHT,
            lambda: errors.OutOfOrder(
                f"{MAX_IN_FLIGHT} batches are {self._name} and none was taken; `dequeue` each "
                "batch that is enqueued, and `apply_gradients` for each training batch."
            ),
        )

    def some(self) -> Any:
        """Returns whether anything waits, a scalar bool tensor."""
        return self.queue.size() > 0


def take_from_all(
    fifos: Sequence[Fifo], error: Callable[[], errors.EngineError]
) -> list[list[Any]]:
    """Removes and returns the oldest of each; if one has none, nothing is taken and it fails."""
    holds = fifos[0].some()
    for fifo in fifos[1:]:
        holds = tf.logical_and(holds, fifo.some())
    taken = []
    with tf.control_dependencies(_check(holds, error)):
        for fifo in fifos:
            tensors = fifo.queue.dequeue()
            taken.append(list(tensors) if isinstance(tensors, (list, tuple)) else [tensors])
    return taken


def batch_dtypes(plan: Plan) -> list[tf.DType]:
    """Returns the dtypes of a packed batch."""
    return _occurrence_dtypes(plan, plan.num_cores)


def pack(batch: Batch, compact: Sequence[bool]) -> list[Any]:
    """Returns a batch as a flat list of tensors.

    Args:
        compact: for each feature whether it is native, so that the empty tensors of
            `Occurrences.compact` do; else cells and gains are written out.
    """
    flat: list[Any] = []
    for core in batch.occurrences:
        for feature, is_compact in zip(core, compact, strict=True):
            whole = feature.compact() if is_compact else feature.explicit()
            flat += [whole.ids, whole.cell, whole.gain, whole.num_cells]
    return [*flat, tf.convert_to_tensor(batch.training, tf.bool)]


def unpack(plan: Plan, flat: Sequence[Any], num_cores: int) -> Batch:
    """The inverse of `pack`; a queue forgets shapes, so they are put back."""
    pieces = iter(flat)
    cores = tuple(tuple(_occurrences(pieces) for _ in plan.features) for _ in range(num_cores))
    training = next(pieces)
    training.set_shape([])
    return Batch(cores, training)


def _occurrences(pieces: Iterator[Any]) -> Occurrences:
    ids, cell, gain, num_cells = (next(pieces) for _ in range(4))
    for tensor in (ids, cell, gain):
        tensor.set_shape([None])
    num_cells.set_shape([])
    return Occurrences(ids, cell, gain, num_cells)


def _occurrence_dtypes(plan: Plan, num_cores: int) -> list[tf.DType]:
    one = [tf.int64, tf.int64, tf.float32, tf.int64]
    return one * (len(plan.features) * num_cores) + [tf.bool]


def _check(holds: Any, error: Callable[[], errors.EngineError]) -> list[Any]:
    if tf.executing_eagerly():
        if not bool(holds):
            raise error()
        return []
    check = tf.debugging.Assert(holds, [str(error())])
    return [] if check is None else [check]
