"""The cores of a TPU, as an engine's calls reach them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf2_engine import errors, initializers, tf_compat
from tf2_engine.backends.tpu import topology
from tf2_engine.batch import RawIds, read_ids
from tf2_engine.cores import ByCore, Cores
from tf2_engine.plan import Plan, TablePlan
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import PARAMETERS, VariableFactory

if TYPE_CHECKING:
    from tf2_engine.backends.tpu.driver import TpuDriver

Reader = Callable[[], Sequence[RawIds]]
"""Reads the ids of one core. The driver calls it where the host of that core does its work."""


class TpuCores(Cores):
    """The cores of a TPUStrategy.

    Inside `strategy.run` a call is traced once and runs on every core: there it speaks for the
    core it runs on, and none meets another. The device brings the cores of a step together.
    """

    def __init__(self, driver: TpuDriver, count: int | None, hosts: int | None) -> None:
        self._strategy = tf.distribute.get_strategy()
        self._driver = driver
        self._topology = driver.topology
        self.count, self.hosts = len(self._topology.cores), len(self._topology.hosts)
        self.per_replica = self._topology.cores_per_replica or 1
        for name, given, found in (
            ("num_cores", count, self.count),
            ("num_hosts", hosts, self.hosts),
        ):
            if given not in (None, found):
                raise errors.InvalidSpec(
                    f"`{name}`={given}, but the TPU has {found}. Leave `{name}` out."
                )

    @property
    def tables_are_elsewhere(self) -> bool:
        return True

    def variable_factory(self, spec: EngineSpec) -> VariableFactory | None:
        sizes = {table.name or "": table.vocabulary_size for table in spec.tables}
        return host_factory(self._topology.hosts, sizes)

    def speaking_for_itself(self) -> bool:
        return self._driver.inside_computation

    def meet(self, call: str, function: Callable[[ByCore], Any], value: Any) -> Any:
        result = function({0: value})
        return result[0] if isinstance(result, list) else result

    def split(self, value: Any, what: str) -> ByCore:
        return dict(enumerate(topology.per_replica(self._strategy, value)))

    def core_of(self, device: str) -> int:
        return self._topology.core_of(device)

    def inputs(
        self,
        plan: Plan,
        values: ByCore,
        weights: Mapping[int, Sequence[Any]],
        before: Callable[[], None],
        *,
        whole: bool,
    ) -> Sequence[Any]:
        self._driver.check_inputs(
            [
                (feature.where, value)
                for own in (*values.values(), *weights.values())
                for feature, value in zip(plan.features, own, strict=True)
            ]
        )
        before()
        inside = self.speaking_for_itself()
        # Inside a computation the device's own rewrite gives each core its part.
        split = self._topology.cores_per_replica if whole and not inside else None
        parts = readers(plan, list(values.values()), list(weights.values()), split)
        if whole:
            return parts
        (core,) = values
        return [parts[0] if core == other else None for other in range(self.count)]

    def check_outside(self, call: str) -> None:
        if not self._driver.inside_computation:
            raise errors.OutOfOrder(
                f"`{call}` is called outside of `strategy.run`. On a TPU each core looks its own "
                "batch up: call it inside the function that `strategy.run` runs."
            )


def readers(
    plan: Plan,
    replicas: Sequence[Sequence[Any]],
    weights: Sequence[Sequence[Any]] | None = None,
    cores_per_replica: int | None = None,
) -> list[Reader]:
    """Returns for each core the function that reads its ids, for `TpuDriver.enqueue`.

    Args:
        replicas: per replica, per feature: a Tensor, SparseTensor or RaggedTensor.
        weights: the same with a weight or None per feature; None is no weights at all.
        cores_per_replica: over how many cores to split what a replica has, as the topology says;
            None is no split, and right inside `strategy.run` and for a part that a `device` gets.
    """
    weights = weights or [[None] * len(values) for values in replicas]
    return [
        functools.partial(_read, plan, values, own, number, cores_per_replica)
        for values, own in zip(replicas, weights, strict=True)
        for number in range(cores_per_replica or 1)
    ]


def host_factory(
    hosts: Sequence[str], vocabulary_sizes: Mapping[str, int] | None = None
) -> VariableFactory:
    """Returns a factory for `create_tables` that keeps each shard on its host.

    The variables are named as stock names them, `<table>_<shard>` and `<table>/<slot>_<shard>`,
    and they are host memory that `load` and `retrieve` copy from and to: not mirrored over cores,
    not trainable.

    Args:
        hosts: the device of each shard's host.
        vocabulary_sizes: by table name. A plan has a row on every host even when the vocabulary
            is smaller; with the sizes given, hosts beyond it get no variable, as in stock, so
            that checkpoints hold the vocabulary and nothing else.
    """

    def make(
        table: TablePlan,
        name: str,
        shapes: Sequence[tuple[int, int]],
        initializer: Callable[..., Any],
    ) -> list[tf.Variable]:
        base = table.name if name == PARAMETERS else f"{table.name}/{name}"
        rows = (vocabulary_sizes or {}).get(table.name, table.rows)
        variables = []
        # Fewer rows than hosts are one row each, on the first hosts.
        for shard, (host, shape) in enumerate(zip(hosts, shapes, strict=True)):
            if shard < rows:
                with tf.device(host):
                    start = functools.partial(
                        initializers.initial_value, table.name, initializer, shard, shape
                    )
                    variables.append(_variable(f"{base}_{shard}", shape, start))
        return variables

    return make


def _variable(name: str, shape: tuple[int, int], start: Callable[[], Any]) -> tf.Variable:
    return tf_compat.plain_variable(
        initial_value=start,
        shape=shape,
        dtype=tf.float32,
        trainable=False,
        name=name,
    )


def _read(
    plan: Plan, values: Sequence[Any], weights: Sequence[Any], number: int, count: int | None
) -> list[RawIds]:
    return [
        read_ids(
            feature,
            topology.part(feature.where, value, number, count),
            topology.part(feature.where, weight, number, count),
        )
        for feature, value, weight in zip(plan.features, values, weights, strict=True)
    ]
