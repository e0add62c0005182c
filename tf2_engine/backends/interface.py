"""The interface of a backend: a driver, which runs a plan, and the cores that it runs it for.

`EngineCores` is the side of the caller: it turns a call of the engine, from wherever it was made,
into values of cores. `Driver` is the side of the device: six verbs on the values of cores. An
engine needs nothing else, and does not ask which backend it has.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

from tf2_engine import errors
from tf2_engine.placement import Servers
from tf2_engine.plan import Plan
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import Table, VariableFactory
from tf2_engine.types import Ids, Nest, Op, Strategy, Tensor

Value = TypeVar("Value")
"""The values of a call for one core or replica."""

PerCore = Sequence[Sequence[Tensor]]
"""Per core, per feature: activations or their gradients, each [*output_shape, dim] float32."""

Rates = Sequence[Tensor]
"""The dynamic learning rates of a step by tag, scalar float32."""

Update = Callable[[PerCore, Rates], Op]
"""Takes gradients and rates as `Driver.send_gradients` does; returns the op that updates."""


class FeatureInput(NamedTuple):
    """The ids of one feature, as the user passed them, and their weights, if there are any."""

    ids: Ids
    weights: Ids | None


@dataclasses.dataclass(frozen=True)
class StepInputs:
    """The part of a step that one call enqueues, by position of the replica or core.

    Inputs are in the order of the features. A replica may have several cores; parts that are not
    `of_replicas` are that of a single core, which was named by its device.
    """

    parts: Mapping[int, Sequence[FeatureInput]]
    of_replicas: bool = True


@dataclasses.dataclass(frozen=True)
class EngineCall(Generic[Value]):
    """A call of a method of the engine, which messages call by this `name`.

    The `values` are the nests passed for its arguments: for all cores, or inside `strategy.run` for
    this replica; None is None for each of them. `read` is called with those of one core or replica,
    and `function` with what it returned for each of them, by position; that returns a list with a
    result for each, or an op. `from_host`: the call can be made outside of `strategy.run` on any
    backend.
    """

    name: str
    values: Mapping[str, Nest]
    read: Callable[[Mapping[str, Nest]], Value]
    function: Callable[[Mapping[int, Value]], Op | list[Nest]]
    from_host: bool = False


class EngineCores(abc.ABC):
    """The cores and hosts of an engine, as calls reach them.

    The methods of an engine are called in three ways: for a global step, with what an iterator of a
    distributed dataset gives; by a replica for itself, inside `strategy.run`; and for one core that
    is named by its device.

    The rows of a table are spread over so many `hosts`. With model parallelism a replica has
    several cores, `per_replica`. If a device holds the tables, the variables are copies of them;
    `servers` are the parameter servers that hold them, if there are any.
    """

    count: int
    hosts: int
    per_replica: int = 1
    tables_on_device: bool = False
    variable_factory: VariableFactory | None = None
    servers: Servers | None = None

    @abc.abstractmethod
    def call(self, call: EngineCall[Value]) -> Nest:
        """Calls a function with the values of the cores for which the engine is called.

        Returns the op; or the results: this replica's inside `strategy.run`, else that of the only
        core or a list with those of all. Raises ControlFlow where a replica cannot call,
        InvalidInput for an argument with too many or too few parts, and OutOfOrder if only a
        replica may call.
        """

    @abc.abstractmethod
    def core_of(self, device: str) -> int:
        """Returns the position of the core that is meant by a device.

        Raises InvalidInput if it is none of the cores' devices, or the call is inside
        `strategy.run`.
        """

    def check(self, plan: Plan, inputs: StepInputs) -> None:
        """Refuses, by the name of the feature, inputs that the backend cannot take from there."""
        return


def device_inside_run(device: str) -> errors.InvalidInput:
    """Returns the error for a device that is named inside `strategy.run`."""
    return errors.InvalidInput(
        f"`device`={device!r}: inside `strategy.run` each replica enqueues for itself; leave it "
        "out."
    )


class Driver(abc.ABC):
    """Runs a plan on a device.

    A driver is a `StepDriver` or a `ReplicaDriver`: they differ in the cores for which `dequeue`
    and `send_gradients` are called. Each is called through the cores that `cores` returns, which
    know that. In a `tf.Graph` the verbs return ops that the caller must run; in a tf.function and
    eagerly they have taken effect when they return. (`graph_mode` has helpers for that.)
    """

    strategies: ClassVar[tuple[type[Strategy], ...]] = ()
    """Under these strategies an engine uses this driver if none is named."""

    drops_batches: ClassVar[bool] = False
    """Whether batches that wait can be dropped; see `reset_batches`."""

    @classmethod
    def claims(cls, strategy: Strategy) -> bool:
        """Returns whether an engine made under a strategy uses this driver if none is named."""
        return isinstance(strategy, cls.strategies)

    @classmethod
    def for_engine(cls, *, initialize: bool) -> Driver:
        """Returns the driver of an engine made in the current scope; it may initialise hardware."""
        return cls()

    @abc.abstractmethod
    def cores(self, count: int | None, hosts: int | None) -> EngineCores:
        """Returns the cores of an engine that is made in the current scope.

        `count` and `hosts` are what the user asks for; None leaves them to the driver. Raises
        InvalidSpec if the backend has other numbers of them.
        """

    def check_spec(self, spec: EngineSpec) -> None:
        """Refuses, by name, settings of a spec that the backend does not have."""
        return

    def synchronous_cores(
        self, synchronous: int, count: int | None, hosts: int | None
    ) -> EngineCores:
        """Returns cores that are called apart, one by each function of a synchronous step.

        Their gradients are sent by `collect_gradients`, and then applied by `apply_collected`.
        Raises InvalidSpec as `cores`, and where all cores of a step are called at once.
        """
        raise errors.InvalidSpec(
            f"`synchronous`={synchronous} is for functions that a ClusterCoordinator schedules, "
            "under ParameterServerStrategy. Elsewhere each step is synchronous; `num_cores` says "
            "of how many cores."
        )

    def initialized(self) -> bool | None:
        """Returns whether an engine has initialised the hardware; None where it cannot be asked."""
        return False

    @abc.abstractmethod
    def configure(self, plan: Plan) -> Op:
        """Gets ready to run `plan`; state of an earlier plan is dropped."""

    @abc.abstractmethod
    def load(self, tables: Mapping[str, Table]) -> Op:
        """Takes parameters and slots over from the variables, for instance after a restore."""

    @abc.abstractmethod
    def retrieve(self, tables: Mapping[str, Table]) -> Op:
        """Brings the variables up to date, for instance before a checkpoint is written."""

    @abc.abstractmethod
    def enqueue(self, inputs: StepInputs, training: Tensor | bool, name: str | None = None) -> Op:
        """Enqueues a batch, or a part of one.

        `training` says whether gradients will come back; a bool or a scalar bool tensor. The name
        tags the batch: a `dequeue` and `send_gradients` of that name take it.
        """

    @abc.abstractmethod
    def dequeue(self, name: str | None = None) -> PerCore:
        """Returns the activations of the oldest batch that was not looked up yet.

        Raises OutOfOrder if nothing is enqueued.
        """

    @abc.abstractmethod
    def send_gradients(self, gradients: PerCore, rates: Rates, name: str | None = None) -> Op:
        """Updates the tables with the gradients of the oldest training batch looked up.

        Raises OutOfOrder if no batch waits for gradients.
        """

    def collect_gradients(
        self, core: Tensor | int, gradients: PerCore, name: str | None = None
    ) -> Op:
        """Sends the gradients of one core of a synchronous step; see `synchronous_cores`.

        The core is its number, an int or a scalar integer tensor. Raises OutOfOrder if no batch
        waits for gradients.
        """
        raise NotImplementedError

    def apply_collected(self, rates: Rates) -> Op:
        """Updates the tables with the gradients that all cores of a synchronous step sent.

        Called eagerly. Raises OutOfOrder if those of a core did not come.
        """
        raise NotImplementedError

    def reset_batches(self) -> Op:
        """Drops the batches that wait, to be looked up or for gradients, if `drops_batches`."""
        raise NotImplementedError

    def look_up(
        self, inputs: StepInputs, training: bool | None, name: str | None = None
    ) -> tuple[PerCore, Update]:
        """Looks one batch up at once, before it is known whether its gradients will come.

        Returns the activations, and a function that sends their gradients. Without `training`
        gradients may come or not; if it is False none can come. The name tells the batches of a
        graph from each other.

        A device finds out by itself: a rewrite of the graph turns a batch into one for inference if
        no op of its name sends gradients. The software TPU has no such rewrite: there a batch is
        for inference if it is known that no gradients can come.
        """
        self.enqueue(inputs, training is not False, name)
        return self.dequeue(name), functools.partial(self.send_gradients, name=name)


class StepDriver(Driver):
    """A driver that is called once for all cores of a global step, outside of `strategy.run`.

    Its cores merge the calls of replicas into one. `dequeue` returns, and `send_gradients` takes,
    an entry for every core; `enqueue` takes the parts of all cores, or of one.
    """


class ReplicaDriver(Driver):
    """A driver that is called while the function of a replica is traced, once for all replicas.

    `dequeue` returns, and `send_gradients` takes, a single entry, for the replica that is traced;
    so does `enqueue` inside `strategy.run`, while outside of it it takes the parts of all replicas,
    or of one core. With model parallelism the first dimension of an entry is that of the replica:
    it is multiplied by the cores per replica.
    """

    _plan: Plan | None = None

    def _ready(self) -> Plan:
        if self._plan is None:
            raise errors.OutOfOrder("The driver is not configured; `configure` comes first.")
        return self._plan
