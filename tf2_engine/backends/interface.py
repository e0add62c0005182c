"""The interface of a backend: a driver, which runs a plan, and the cores that it runs on."""

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
"""Selects the update rules: those of TPUs before v5p ("tpu"), or those of SparseCores."""

Value = TypeVar("Value")

Activations: TypeAlias = Sequence[Sequence[Tensor]]
"""For each core, a list with one tensor per feature, [*output_shape, dim] float32."""

Gradients: TypeAlias = Sequence[Sequence[Tensor]]
"""The gradients of `Activations`, with the same shapes."""

Rates: TypeAlias = Sequence[Tensor]
"""The dynamic learning rates of a step, float32 scalars. The index of a rate is its tag."""

Update: TypeAlias = Callable[[Gradients, Rates], Op]
"""A function that updates the tables, given gradients and rates as for `Driver.send_gradients`."""


ReadCore: TypeAlias = Callable[[Mapping[str, Nest]], Value]
"""A function that converts the arguments that one core or replica passes to a method."""

OnCores: TypeAlias = Callable[[Mapping[int, Value]], Op | list[Nest]]
"""A function that takes values by the core's position; returns an op, or a result per core."""


class EngineCores(abc.ABC):
    """The cores and hosts of an engine, and how a call is split into values for each core.

    A method of the engine can be called for a global step (with values of a distributed dataset),
    for one replica (inside `strategy.run`), or for one core (named by its device).

    Attributes:
        hosts: the number of hosts over which rows are spread.
        per_replica: the number of cores per replica, more than 1 only with model parallelism.
        tables_on_device: True if a device holds the tables and the variables are only copies.
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
        """Passes a method's arguments to `function`, for all cores that take part in the call.

        Args:
            values: the method's arguments, for all cores or (inside `strategy.run`) for this
                replica.
            read: converts the arguments of one core or replica for `function`.
            from_host: whether every backend allows the method outside `strategy.run`.

        Returns:
            The op, if `function` returns an op. If it returns one result per core: inside a
                replica, that replica's result; with one core, its result; otherwise the list.
        """

    @abc.abstractmethod
    def core_of(self, device: str) -> int: ...

    def initialized(self) -> bool | None:
        """Whether an engine has initialized the hardware; None if the backend cannot tell."""
        return False

    def check_spec(self, spec: EngineSpec) -> None:
        return

    def check(self, plan: Plan, batch: Batch) -> None:
        """Raises an error for inputs on devices from which the backend cannot read."""
        return


def device_inside_run(device: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"`device`={device!r}: inside `strategy.run` each replica enqueues for itself. Leave "
        "`device` out."
    )


class Driver(abc.ABC):
    """Runs a plan on a device. Six methods, from `configure` to `send_gradients`, do the work.

    In a `tf.Graph` the methods return ops that the caller must run; see `graph_mode`.
    """

    strategies: ClassVar[tuple[type[Strategy], ...]] = ()
    """The strategies under which an engine uses this driver by default."""

    arithmetic: Arithmetic = "tpu"

    drops_batches: ClassVar[bool] = True
    """Whether `reset_batches` drops waiting batches. A device's own queue keeps them."""

    @classmethod
    def claims(cls, strategy: Strategy) -> bool:
        return isinstance(strategy, cls.strategies)

    @classmethod
    def for_engine(cls, *, initialize: bool) -> Driver:
        """Creates the driver for an engine in the current scope. This may initialize hardware."""
        return cls()

    @abc.abstractmethod
    def cores(self, count: int | None, hosts: int | None) -> EngineCores:
        """Creates an engine's cores in the current scope. None lets the driver choose a number."""

    def synchronous(self, count: int) -> SynchronousDriver:
        """Creates a driver like this one, for steps that consist of `count` function calls."""
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
        """Copies parameters and slots from the variables to the device, e.g. after a restore."""

    @abc.abstractmethod
    def retrieve(self, tables: Mapping[str, Table]) -> Op:
        """Brings the variables up to date, for instance before a checkpoint is written."""

    @abc.abstractmethod
    def enqueue(self, batch: Batch, training: Tensor | bool, name: str | None = None) -> Op:
        """Enqueues a batch or a part of a batch, for later calls with the same `name`.

        `training`, a bool or a scalar bool tensor, says whether gradients will follow.
        """

    @abc.abstractmethod
    def dequeue(self, name: str | None = None) -> Activations:
        """Looks up the oldest batch that has not been looked up yet."""

    @abc.abstractmethod
    def send_gradients(self, gradients: Gradients, rates: Rates, name: str | None = None) -> Op:
        """Updates the tables with the gradients of the oldest training batch that was looked up."""

    def reset_batches(self) -> Op:
        """Drops all batches that wait for a lookup or for gradients, if `drops_batches` is True."""
        return to_run(None)

    def look_up(
        self, batch: Batch, training: bool | None, name: str | None = None
    ) -> tuple[Activations, Update]:
        """Looks up a batch, for training or inference.

        `training` is False if no gradients will be sent, and None if that is not known. `name`
        distinguishes the batches of a graph. Returns the activations, and a function that sends
        their gradients.

        On a TPU, the graph rewrite turns a training batch into an inference batch if no op with the
        batch's name sends gradients. On the software TPU, a batch is for inference only if
        `training` is False.
        """
        self.enqueue(batch, training is not False, name)
        return self.dequeue(name), functools.partial(self.send_gradients, name=name)


class StepDriver(Driver):
    """A driver that is called once for all cores of a global step, outside `strategy.run`.

    `dequeue` returns, and `send_gradients` takes, a list with one entry per core. `enqueue` takes
    the batch of all cores, or of one core.
    """


class ReplicaDriver(Driver):
    """A driver that is called once for all replicas, while the function of a replica is traced.

    Outside `strategy.run`, `enqueue` takes the batch of all replicas, or of one core. With model
    parallelism, the first dimension of a replica's tensors covers all of its cores.
    """

    _plan: Plan | None = None

    def _ready(self) -> Plan:
        if self._plan is None:
            raise errors.OutOfOrder("The driver is not configured. Call `configure` first.")
        return self._plan


class SynchronousDriver(Driver):
    """A driver for steps that consist of several function calls, one per core.

    The coordinator applies the gradients of all calls at once.
    """

    @abc.abstractmethod
    def collect_gradients(
        self, core: Tensor | int, gradients: Gradients, name: str | None = None
    ) -> Op:
        """Sends the gradients of one core. `core` is an int or a scalar integer tensor."""

    @abc.abstractmethod
    def apply_collected(self, rates: Rates) -> Op:
        """Eagerly updates the tables with the gradients that all cores have sent in this step."""
