"""The interface of a backend: a driver, which runs a plan, and the cores that it runs on.

`EngineCores` faces the caller and turns a call of the engine into values per core. `Driver` faces
the device and takes the values of cores.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, TypeVar

from tf2_engine import errors
from tf2_engine.batch import Batch
from tf2_engine.graph_mode import to_run
from tf2_engine.placement import Servers
from tf2_engine.plan import Plan
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import Table, VariableFactory
from tf2_engine.types import Nest, Op, Strategy, Tensor

Arithmetic: TypeAlias = Literal["tpu", "sparsecore"]
"""Update rules: of the first generation, or of the SparseCores of TPU v5p, v6e and TPU7x."""

Value = TypeVar("Value")
"""The values of a call for one core or replica."""

Activations: TypeAlias = Sequence[Sequence[Tensor]]
"""The activations of a step per core and feature, each [*output_shape, dim] float32."""

Gradients: TypeAlias = Sequence[Sequence[Tensor]]
"""The gradients of `Activations`, of the same shapes."""

Rates: TypeAlias = Sequence[Tensor]
"""The dynamic learning rates of a step by tag, scalar float32."""

Update: TypeAlias = Callable[[Gradients, Rates], Op]
"""Takes gradients and rates as `Driver.send_gradients` does, and updates the tables."""


ReadCore: TypeAlias = Callable[[Mapping[str, Nest]], Value]
"""Reads the arguments of a call for one core or replica."""

OnCores: TypeAlias = Callable[[Mapping[int, Value]], Op | list[Nest]]
"""Takes the values of all cores by position; returns an op, or a result for each core."""


class EngineCores(abc.ABC):
    """The cores and hosts of an engine.

    An engine's method is called in one of three ways: for a global step, with values from an
    iterator of a distributed dataset; by a replica, inside `strategy.run`; or for one core, named
    by its device.

    Attributes:
        hosts: the number of hosts over which a table's rows are spread.
        per_replica: the number of cores per replica; above 1 with model parallelism.
        tables_on_device: whether a device holds the tables, so that the variables are copies.
        servers: the parameter servers that hold the tables, if any.
    """

    count: int
    hosts: int
    per_replica: int = 1
    tables_on_device: bool = False
    variable_factory: VariableFactory | None = None
    servers: Servers | None = None

    @abc.abstractmethod
    def call(
        self,
        name: str,
        values: Mapping[str, Nest],
        read: ReadCore[Value],
        function: OnCores[Value],
        *,
        from_host: bool = False,
    ) -> Nest:
        """Calls `function` with the values of the cores that a call of the engine is for.

        Args:
            values: the arguments of the method: for all cores, or inside `strategy.run` for this
                replica.
            read: converts the values of one core or replica for `function`.
            from_host: whether the method can be called outside `strategy.run` on any backend.

        Returns:
            The op, or the results: inside `strategy.run` the replica's, otherwise the only core's
                or a list of all cores'.
        """

    @abc.abstractmethod
    def core_of(self, device: str) -> int: ...

    def initialized(self) -> bool | None:
        """Whether an engine has initialized the hardware; None if the backend cannot tell."""
        return False

    def check_spec(self, spec: EngineSpec) -> None:
        return

    def check(self, plan: Plan, batch: Batch) -> None:
        """Refuses inputs on devices from which the backend cannot read."""
        return


def device_inside_run(device: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"`device`={device!r}: inside `strategy.run` each replica enqueues for itself; leave it "
        "out."
    )


class Driver(abc.ABC):
    """Runs a plan on a device, with the six methods from `configure` to `send_gradients`.

    In a `tf.Graph` the six methods return ops that the caller must run; see `graph_mode`.
    """

    strategies: ClassVar[tuple[type[Strategy], ...]] = ()
    """Under these strategies an engine uses this driver by default."""

    arithmetic: Arithmetic = "tpu"
    """The update rules of the driver."""

    drops_batches: ClassVar[bool] = True
    """Whether `reset_batches` drops waiting batches. A device that queues batches itself cannot."""

    @classmethod
    def claims(cls, strategy: Strategy) -> bool:
        return isinstance(strategy, cls.strategies)

    @classmethod
    def for_engine(cls, *, initialize: bool) -> Driver:
        """Makes the driver for an engine in the current scope. This may initialise hardware."""
        return cls()

    @abc.abstractmethod
    def cores(self, count: int | None, hosts: int | None) -> EngineCores:
        """Makes the cores for an engine in the current scope.

        The user asks for `count` and `hosts`; the driver chooses where they are None.
        """

    def synchronous(self, count: int) -> SynchronousDriver:
        """Makes a driver like this one whose steps consist of `count` functions."""
        raise errors.InvalidSpec(
            f"`synchronous`={count} is for functions that a ClusterCoordinator schedules, under "
            "ParameterServerStrategy. Elsewhere every step is synchronous; set the number of its "
            "cores with `num_cores`."
        )

    @abc.abstractmethod
    def configure(self, plan: Plan) -> Op:
        """Prepares to run `plan`, and drops the state of an earlier plan."""

    @abc.abstractmethod
    def load(self, tables: Mapping[str, Table]) -> Op:
        """Copies parameters and slots from the variables, for instance after a restore."""

    @abc.abstractmethod
    def retrieve(self, tables: Mapping[str, Table]) -> Op:
        """Brings the variables up to date, for instance before a checkpoint is written."""

    @abc.abstractmethod
    def enqueue(self, batch: Batch, training: Tensor | bool, name: str | None = None) -> Op:
        """Enqueues a batch, or a part of one, for the calls with the same `name`.

        `training` says whether gradients will follow: a bool or a scalar bool tensor.
        """

    @abc.abstractmethod
    def dequeue(self, name: str | None = None) -> Activations:
        """Looks up the oldest batch that waits for it."""

    @abc.abstractmethod
    def send_gradients(self, gradients: Gradients, rates: Rates, name: str | None = None) -> Op:
        """Updates the tables with the gradients of the oldest training batch looked up."""

    def reset_batches(self) -> Op:
        """Drops all batches that wait for their lookup or gradients, if `drops_batches`."""
        return to_run(None)

    def look_up(
        self, batch: Batch, training: bool | None, name: str | None = None
    ) -> tuple[Activations, Update]:
        """Looks up one batch when it is not known yet whether gradients will follow.

        `training` is False if no gradients can follow, else None. `name` distinguishes the batches
        of a graph. Returns the activations, and a function that sends their gradients.

        A TPU's graph rewrite enqueues a batch for inference if no op with its name sends gradients.
        The software TPU only does so if `training` is False.
        """
        self.enqueue(batch, training is not False, name)
        return self.dequeue(name), functools.partial(self.send_gradients, name=name)


class StepDriver(Driver):
    """A driver that is called once for all cores of a global step, outside `strategy.run`.

    `dequeue` and `send_gradients` have an entry for every core. `enqueue` takes the parts of all
    cores, or of one.
    """


class ReplicaDriver(Driver):
    """A driver that is called once for all replicas, while the function of a replica is traced.

    Outside, `enqueue` takes the parts of all replicas, or of one core. With model parallelism the
    first dimension covers all cores of the replica.
    """

    _plan: Plan | None = None

    def _ready(self) -> Plan:
        if self._plan is None:
            raise errors.OutOfOrder("The driver is not configured. Call `configure` first.")
        return self._plan


class SynchronousDriver(Driver):
    """A driver of steps that consist of several functions, each of which is one core.

    Each function sends its gradients; then the coordinator applies them all.
    """

    @abc.abstractmethod
    def collect_gradients(
        self, core: Tensor | int, gradients: Gradients, name: str | None = None
    ) -> Op:
        """Sends the gradients of one core, an int or a scalar integer tensor."""

    @abc.abstractmethod
    def apply_collected(self, rates: Rates) -> Op:
        """Updates the tables, eagerly, with the gradients that all cores of a step sent."""
