"""The cores of an engine whose work is done by tasks of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.backends.host.cores import HostCores
from tf2_engine.graph_mode import building_graph
from tf2_engine.placement import Servers, workers_of_cores
from tf2_engine.plan import TablePlan
from tf2_engine.tables import VariableFactory, variable_factory
from tf2_engine.types import Initializer, Variable


class ServerCores(HostCores):
    """Cores of which parameter servers, `servers`, hold the tables.

    The `devices` are those of the cores, where they are known.
    """

    servers: Servers
    devices: tuple[str, ...] = ()


class PsCores(ServerCores):
    """Cores on workers; parameter servers hold the tables.

    Raises InvalidSpec for several hosts, a number of cores that the workers do not divide, or a
    strategy in scope.
    """

    def __init__(
        self, count: int | None, hosts: int | None, workers: Sequence[str], servers: Servers
    ) -> None:
        if tf.distribute.has_strategy():
            raise errors.InvalidSpec(
                f"{tf.distribute.get_strategy()!r} is in scope, but the ps driver places cores and "
                "tables by itself. Make the engine outside of the strategy."
            )
        if hosts not in (None, 1):
            raise errors.InvalidSpec(
                f"`num_hosts`={hosts}: parameter servers hold the rows, and hosts of a TPU cannot "
                "be emulated beside them. Leave `num_hosts` out."
            )
        super().__init__(len(workers) if count is None else count, 1)
        self.devices = tuple(
            workers[worker] for worker in workers_of_cores(self.count, len(workers))
        )
        self.servers = servers
        self.variable_factory = _in_a_graph(variable_factory(servers=servers))

    def on_core(self, core: int) -> AbstractContextManager[None]:
        device: AbstractContextManager[None] = tf.device(self.devices[core])
        return device


def _in_a_graph(factory: VariableFactory) -> VariableFactory:
    """Returns a factory that raises InvalidSpec eagerly, before it makes any variable."""

    def make(
        table: TablePlan, name: str, shapes: Sequence[tuple[int, int]], initializer: Initializer
    ) -> Sequence[Variable]:
        if not building_graph():
            raise errors.InvalidSpec(
                "Parameter servers are used in a tf.Graph: one client builds the step for all "
                "tasks. Make the engine under `tf.Graph().as_default()`, or run on one machine."
            )
        return factory(table, name, shapes, initializer)

    return make
