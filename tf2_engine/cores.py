"""For which cores a call speaks: for all of them, for one by its device, or for the caller's own.

An engine's methods are called in three ways: for a whole global step, with what an iterator of a
distributed dataset gives; for one core that is named by its device; and by a replica for itself,
inside `strategy.run`. A driver's verbs speak of cores, and this is what is in between.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import batch, errors, tf_compat
from tf2_engine.plan import Plan
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import VariableFactory

ByCore = Mapping[int, Any]
"""What the cores that a call speaks for pass, by the position of the core."""


class Cores(abc.ABC):
    """The cores and hosts of an engine.

    Attributes:
        count: how many cores there are.
        hosts: over how many hosts the rows of a table are spread.
        per_replica: over how many cores a replica is spread; 1 but for model parallelism.
    """

    count: int
    hosts: int
    per_replica: int = 1

    @property
    def tables_are_elsewhere(self) -> bool:
        """Whether the variables are copies of tables that a device holds."""
        return False

    def variable_factory(self, spec: EngineSpec) -> VariableFactory | None:
        """Returns what makes the variables of the tables; None is the default."""
        return None

    @abc.abstractmethod
    def speaking_for_itself(self) -> bool:
        """Whether a replica is calling, inside `strategy.run`."""

    @abc.abstractmethod
    def meet(self, call: str, function: Callable[[ByCore], Any], value: Any) -> Any:
        """Makes the call of a replica that speaks for itself.

        Args:
            call: how messages name the call.
            function: takes the values of the cores; returns a list with a result for each of
                them, or something else for all.
            value: this replica's: a nest of tensors.

        Returns:
            This replica's result.

        Raises:
            ControlFlow: the call is in control flow, from where it cannot be made.
        """

    @abc.abstractmethod
    def split(self, value: Any, what: str) -> ByCore:
        """Returns each core's, or each replica's, part of a value that is passed for all of them.

        Raises:
            InvalidInput: there are too many parts, or too few; the message names `what`.
        """

    @abc.abstractmethod
    def core_of(self, device: str) -> int:
        """Returns the position of the core that is meant by a device.

        Raises:
            InvalidInput: it is none of the cores' devices.
        """

    @abc.abstractmethod
    def inputs(
        self,
        plan: Plan,
        values: ByCore,
        weights: Mapping[int, Sequence[Any]],
        before: Callable[[], None],
        *,
        whole: bool,
    ) -> Sequence[Any]:
        """Returns what `Driver.enqueue` takes.

        Args:
            values: by core, or by replica, per feature: a Tensor, SparseTensor or RaggedTensor.
            weights: the same with a weight or None per feature.
            before: called once the values were found to be possible.
            whole: whether they are those of replicas; else of a single core.

        Raises:
            InvalidInput, WrongType: a value does not fit its feature.
        """

    def check_outside(self, call: str) -> None:
        """Refuses a call from outside of `strategy.run` where only replicas can make it.

        Raises:
            OutOfOrder: the message names the call.
        """
        return


class EmulatedCores(Cores):
    """Cores that a driver on hosts emulates: one per replica, or as many as one likes.

    Such a driver works on global steps. So the calls of all replicas meet, one call is made for
    them, and each gets its part of the result.
    """

    def __init__(self, count: int | None, hosts: int) -> None:
        self._strategy = tf.distribute.get_strategy()
        replicas = int(self._strategy.num_replicas_in_sync)
        self.count = replicas if count is None else count
        self.hosts = hosts
        if replicas not in (1, self.count):
            raise errors.InvalidSpec(
                f"`num_cores`={count}, but the strategy has {replicas} replicas. Leave `num_cores` "
                "out."
            )

    def speaking_for_itself(self) -> bool:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return replicas > 1 and not tf.distribute.in_cross_replica_context()

    def meet(self, call: str, function: Callable[[ByCore], Any], value: Any) -> Any:
        def merged(strategy: tf.distribute.Strategy, *values: Any) -> Any:
            results = function(_by_replica(strategy, values[0]))
            if not isinstance(results, list):
                return None
            return tf.nest.map_structure(lambda *parts: tf_compat.per_replica(parts), *results)

        context = tf.distribute.get_replica_context()
        try:
            return context.merge_call(merged, args=(value,))
        except RuntimeError as error:
            if "merge_call" not in str(error):
                raise
            raise errors.ControlFlow(
                f"`{call}` is called inside control flow (a tf.cond, say) inside `strategy.run`, "
                "where the replicas cannot meet. Call it outside of the control flow."
            ) from error

    def split(self, value: Any, what: str) -> ByCore:
        if self.count == 1:
            return {0: value}
        if self._strategy.num_replicas_in_sync > 1:
            return _by_replica(self._strategy, value)
        if not isinstance(value, (list, tuple)) or len(value) != self.count:
            raise errors.InvalidInput(
                f"`{what}` must be a list with one entry for each of the {self.count} cores."
            )
        return dict(enumerate(value))

    def core_of(self, device: str) -> int:
        if self.count == 1:
            return 0
        devices = self._strategy.extended.worker_devices
        if device not in devices:
            raise errors.InvalidInput(
                f"`device`={device!r} is not one of the strategy's worker devices {list(devices)}."
            )
        return int(devices.index(device))

    def inputs(
        self,
        plan: Plan,
        values: ByCore,
        weights: Mapping[int, Sequence[Any]],
        before: Callable[[], None],
        *,
        whole: bool,
    ) -> Sequence[Any]:
        inputs: list[list[batch.RawIds] | None] = [None] * self.count
        for core, own in values.items():
            inputs[core] = [
                batch.read_ids(feature, value, weight)
                for feature, value, weight in zip(plan.features, own, weights[core], strict=True)
            ]
        before()
        return inputs


def _by_replica(strategy: tf.distribute.Strategy, nest: Any) -> dict[int, Any]:
    """Returns, for each replica, the nest with that replica's tensors as leaves.

    Raises:
        InvalidInput: a leaf has another number of values than there are replicas.
    """
    number = strategy.num_replicas_in_sync
    leaves: list[Sequence[Any]] = []
    for leaf in tf.nest.flatten(nest):
        local = strategy.experimental_local_results(leaf)
        if isinstance(leaf, (bool, int)) or leaf is None:
            local = (leaf,) * number
        if len(local) != number:
            raise errors.InvalidInput(
                f"{leaf!r} is one value for {number} replicas; pass what an iterator of a "
                "distributed dataset gives, one value per replica."
            )
        leaves.append(local)
    return {
        replica: tf.nest.pack_sequence_as(nest, [leaf[replica] for leaf in leaves])
        for replica in range(number)
    }
