"""Batches in flight, held where the step runs.

While a `tf.Graph` is built, a batch is a set of tensors of that graph and waits in a list kept
per graph: a later call in the same graph takes it, and an abandoned graph takes its batches with
it. Eagerly and in tf.functions, one function may enqueue and another dequeue, so a batch waits in
a queue resource: tracing a function any number of times, or failing to, changes nothing.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import deque
from collections.abc import Callable, Sequence
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
    """

    occurrences: tuple[tuple[Occurrences, ...], ...]
    training: Any


class GraphFlight:
    """Batches of the graphs under construction."""

    def __init__(self) -> None:
        self._waiting: weakref.WeakKeyDictionary[Any, dict[Stage, deque[Batch]]] = (
            weakref.WeakKeyDictionary()
        )

    def put(self, stage: Stage, batch: Batch) -> None:
        """Lets a batch wait at a stage."""
        self._at(stage).append(batch)

    def take(self, call: str) -> Batch:
        """Returns the batch that `call` works on and removes it.

        Raises:
            OutOfOrder: none waits.
        """
        stage = phase.CALLS[call].takes
        assert stage is not None
        waiting = self._at(stage)
        if not waiting:
            raise phase.refuse(call)
        return waiting.popleft()

    def _at(self, stage: Stage) -> deque[Batch]:
        stages = self._waiting.setdefault(tf.compat.v1.get_default_graph(), {})
        return stages.setdefault(stage, deque())


class Fifo:
    """A first-in, first-out queue of tuples of tensors, as a resource."""

    def __init__(self, dtypes: Sequence[tf.DType], name: str) -> None:
        self._name = name
        with tf.device("CPU:0"):
            self._queue = tf.queue.FIFOQueue(MAX_IN_FLIGHT, list(dtypes), name=name)

    def put(self, tensors: Sequence[Any]) -> Any:
        """Appends; returns the op.

        Raises:
            OutOfOrder: too many wait.
        """
        check = self._check(
            self._queue.size() < MAX_IN_FLIGHT,
            lambda: errors.OutOfOrder(
                f"{MAX_IN_FLIGHT} batches are {self._name} and none was taken; `dequeue` each "
                "batch that is enqueued, and `apply_gradients` for each training batch."
            ),
        )
        with tf.control_dependencies(check):
            return self._queue.enqueue(list(tensors))

    def take(self, error: Callable[[], errors.EngineError]) -> list[Any]:
        """Removes and returns the oldest; without one the error that `error` makes is raised."""
        check = self._check(self._queue.size() > 0, error)
        with tf.control_dependencies(check):
            taken = self._queue.dequeue()
        return list(taken) if isinstance(taken, (list, tuple)) else [taken]

    def some(self) -> Any:
        """Returns whether anything waits, a scalar bool tensor."""
        return self._queue.size() > 0

    @staticmethod
    def _check(holds: Any, error: Callable[[], errors.EngineError]) -> list[Any]:
        if tf.executing_eagerly():
            if not bool(holds):
                raise error()
            return []
        check = tf.debugging.Assert(holds, [str(error())])
        return [] if check is None else [check]


class QueueFlight:
    """Batches that one function enqueues and another, or none, takes."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stages = {stage: Fifo(batch_dtypes(plan), stage.name.lower()) for stage in Stage}

    def put(self, stage: Stage, batch: Batch) -> Any:
        """Lets a batch wait at a stage."""
        return self._stages[stage].put(pack(batch))

    def take(self, call: str) -> Batch:
        """Returns the batch that `call` works on and removes it; see `GraphFlight.take`."""
        stage = phase.CALLS[call].takes
        assert stage is not None
        return unpack(self._plan, self._stages[stage].take(lambda: phase.refuse(call)))


def batch_dtypes(plan: Plan) -> list[tf.DType]:
    """Returns the dtypes of a packed batch."""
    one = [tf.int64, tf.int64, tf.float32, tf.int64]
    return one * (len(plan.features) * plan.num_cores) + [tf.bool]


def pack(batch: Batch) -> list[Any]:
    """Returns a batch as a flat list of tensors."""
    flat: list[Any] = []
    for core in batch.occurrences:
        for feature in core:
            explicit = feature.explicit()
            flat += [explicit.ids, explicit.cell, explicit.gain, explicit.num_cells]
    return [*flat, tf.convert_to_tensor(batch.training, tf.bool)]


def unpack(plan: Plan, flat: Sequence[Any]) -> Batch:
    """The inverse of `pack`; a queue forgets shapes, so they are put back."""
    pieces = iter(flat)
    cores = []
    for _ in range(plan.num_cores):
        features = []
        for _ in plan.features:
            ids, cell, gain, num_cells = (next(pieces) for _ in range(4))
            for tensor in (ids, cell, gain):
                tensor.set_shape([None])
            num_cells.set_shape([])
            features.append(Occurrences(ids, cell, gain, num_cells))
        cores.append(tuple(features))
    training = next(pieces)
    training.set_shape([])
    return Batch(tuple(cores), training)
