"""The cores of an engine on a cluster: all cores of a step, or one core per function call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.backends.host.cores import HostCores, check_one_process
from tf2_engine.graph_mode import building_graph
from tf2_engine.placement import Layout, Servers, workers_of_cores
from tf2_engine.plan import TablePlan
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import VariableFactory, variable_factory
from tf2_engine.types import Initializer, Nest, Strategy, Variable


class ServerCores(HostCores):
    """Cores that use tables on parameter servers. `devices` are the cores' devices, if known."""

    servers: Servers
    devices: tuple[str, ...] = ()


class PsCores(ServerCores):
    """Cores on workers, with the tables on parameter servers."""

    def __init__(
        self, count: int | None, hosts: int | None, workers: Sequence[str], servers: Servers
    ) -> None:
        if tf.distribute.has_strategy():
            raise errors.InvalidSpec(
                f"{tf.distribute.get_strategy()!r} is in scope, but the ps driver places cores and "
                "tables by itself. Make the engine outside of the strategy."
            )
        _check_hosts(hosts)
        super().__init__(len(workers) if count is None else count, 1)
        self.devices = tuple(
            workers[worker] for worker in workers_of_cores(self.count, len(workers))
        )
        self.servers = servers
        self.variable_factory = _in_a_graph(variable_factory(servers=servers))

    def on_core(self, core: int) -> AbstractContextManager[None]:
        device: AbstractContextManager[None] = tf.device(self.devices[core])
        return device


class StrategyCores(ServerCores):
    """One core, on whichever worker runs the function, with the tables on parameter servers.

    If `synchronous` is a number, a step consists of this number of function calls, one for each
    core.
    """

    def __init__(
        self,
        count: int | None,
        hosts: int | None,
        *,
        layout: Layout,
        whole_up_to: int,
        synchronous: int | None = None,
    ) -> None:
        strategy = tf.distribute.get_strategy()
        if not is_server_strategy(strategy):
            raise errors.InvalidSpec(
                f"driver='ps' needs a tf.distribute.ParameterServerStrategy, but {strategy!r} is "
                "in scope. Make the engine inside the scope of a ParameterServerStrategy, or leave "
                "`driver` out."
            )
        _check_numbers(count, hosts, int(strategy.num_replicas_in_sync))
        super().__init__(synchronous, 1)
        self.servers = Servers(_server_devices(), layout, whole_up_to)
        self.variable_factory = variable_factory(servers=self.servers)

    def check_spec(self, spec: EngineSpec) -> None:
        if spec.pipeline_execution_with_tensor_core:
            raise errors.InvalidSpec(
                "`pipeline_execution_with_tensor_core`=True is not possible under "
                "ParameterServerStrategy, because a pending update could be lost together with its "
                "worker. Leave the setting out."
            )
        if spec.profile_data_directory:
            raise errors.InvalidSpec(
                f"`profile_data_directory`={spec.profile_data_directory!r} cannot be written under "
                "ParameterServerStrategy. Leave it out, and profile on one machine."
            )

    def core_of(self, device: str) -> int:
        raise errors.InvalidInput(
            f"`device`={device!r}: under ParameterServerStrategy a function enqueues its own "
            "batch, on the worker that the coordinator chooses for it. Leave `device` out."
        )

    def _check_strategy(self, strategy: Strategy, call: str) -> None:
        if not is_server_strategy(strategy):
            check_one_process(strategy, call)

    def _split(self, values: Mapping[str, Nest]) -> list[dict[str, Nest]]:
        return [dict(values)]


def is_server_strategy(strategy: Strategy) -> bool:
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def _in_a_graph(factory: VariableFactory) -> VariableFactory:
    def make(
        table: TablePlan, name: str, shapes: Sequence[tuple[int, int]], initializer: Initializer
    ) -> Sequence[Variable]:
        if not building_graph():
            raise errors.InvalidSpec(
                "An engine on parameter servers must be built in a tf.Graph, in which one client "
                "builds the step for all tasks. Make the engine under `tf.Graph().as_default()`, "
                "or run on one machine."
            )
        return factory(table, name, shapes, initializer)

    return make


def _server_devices() -> tuple[str, ...]:
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    specs = [tf.DeviceSpec.from_string(name) for name in names]
    servers = [spec for spec in specs if (spec.job, spec.device_index) == ("ps", 0)]
    return tuple(spec.to_string() for spec in sorted(servers, key=lambda spec: spec.task))


def _check_numbers(count: int | None, hosts: int | None, replicas: int) -> None:
    if count not in (None, 1):
        raise errors.InvalidSpec(
            f"`num_cores`={count}: under ParameterServerStrategy each scheduled function is "
            f"one core. Leave `num_cores` out, and pass `synchronous`={count} if "
            f"{count} functions should form one step."
        )
    _check_hosts(hosts)
    if replicas != 1:
        raise errors.InvalidSpec(
            f"The workers of the ParameterServerStrategy have {replicas} replicas each, one for "
            "each GPU, but each scheduled function is one core. Give each worker one GPU "
            "(CUDA_VISIBLE_DEVICES), and start more workers."
        )


def _check_hosts(hosts: int | None) -> None:
    if hosts not in (None, 1):
        raise errors.InvalidSpec(
            f"`num_hosts`={hosts}: parameter servers hold the rows, and hosts of a TPU cannot be "
            "emulated beside them. Leave `num_hosts` out."
        )
