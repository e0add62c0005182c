"""A lock on each parameter server, so that functions of several workers do not mix their updates.

An update reads rows and slots, and writes them. Between two of one row that run at the same time
one would be lost, or parameters would be of one and slots of the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf2_engine.backends.interface import Rates
from tf2_engine.backends.ps.cores import ServerCores
from tf2_engine.backends.ps.ends import PartOfTable
from tf2_engine.backends.ps.kernels import ServerKernels
from tf2_engine.backends.ps.messages import Message
from tf2_engine.graph_mode import run_after
from tf2_engine.plan import Plan
from tf2_engine.tables import Table
from tf2_engine.types import Op


class ServerLocks:
    """A lock on each of the devices, held by one update at a time."""

    def __init__(self, devices: Sequence[str]) -> None:
        # Tasks keep what has a name until they end: another engine must not find it.
        name = f"tf2_engine/{uuid.uuid4().hex}"
        self._mutexes = []
        for device in devices:
            with tf.init_scope(), tf.device(device):
                self._mutexes.append(tf.raw_ops.MutexV2(container="", shared_name=name))

    def hold(self, server: int, action: Callable[[], Sequence[Op]]) -> list[Op]:
        """Makes ops that run while the lock of a server is held; returns the op after them."""
        lock = tf.raw_ops.MutexLock(mutex=self._mutexes[server])
        with run_after([lock]):
            ops = action()
        # The lock is held for as long as somebody is to consume it.
        with run_after(ops):
            return [tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)]


class LockedKernels(ServerKernels):
    """Kernels of functions that run at the same time: an update of a server is one piece."""

    def __init__(self, plan: Plan, tables: Mapping[str, Table], cores: ServerCores) -> None:
        super().__init__(plan, tables, cores)
        self._locks = ServerLocks(cores.servers.devices)

    def _update_on(
        self,
        server: int,
        here: Sequence[PartOfTable],
        messages: Sequence[Message],
        rates: Rates,
    ) -> list[Op]:
        # Whatever comes from the worker is here before the lock is taken: if the worker dies, or is
        # slow, nobody waits for it.
        received = [(tf.identity(ids), tf.identity(gradients)) for ids, gradients in messages]
        rates = [tf.identity(rate) for rate in rates]
        update = super()._update_on
        with run_after([*tf.nest.flatten(received), *rates]):
            return self._locks.hold(server, lambda: update(server, here, received, rates))
