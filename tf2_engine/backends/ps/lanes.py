"""Stores the gradients of all cores of a synchronous step on the servers, to apply them together.

A ClusterCoordinator repeats a function when its worker is lost, but the lost run may still send
gradients. Therefore every run draws a new number, which it publishes once all servers have its
gradients. A step uses the gradients with each core's highest published number.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.backends.ps.messages import Message, Messages
from tf2_engine.graph_mode import run_after
from tf2_engine.types import Op, Tensor, Variable

RUNS_OF_A_CORE = 16
"""The largest number of runs of a core per step. With more, a loop forgot to apply gradients."""

_HIGHEST = 2**63 - 1


class Lanes:
    """Stores the gradients of a step in which each core is a separate function call.

    The counter and the published numbers are on the first of the `devices`.
    """

    def __init__(self, devices: Sequence[str], num_cores: int) -> None:
        self._devices = tuple(devices)
        self._num_cores = num_cores
        self._capacity = RUNS_OF_A_CORE * num_cores
        self._queues: list[tf.queue.FIFOQueue] = []
        with tf.init_scope():
            for device in devices:
                with tf.device(device):
                    # The first vector is the core and the number; then ids, then gradients.
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

        Call it eagerly, when `missing` returns no core. The tensors stay on the servers.
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
