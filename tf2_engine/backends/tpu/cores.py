"""The cores of a TPU."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.backends.interface import EngineCores, OnCores, ReadCore, Value, device_inside_run
from tf2_engine.backends.tpu import checks, topology
from tf2_engine.batch import Batch
from tf2_engine.plan import Plan
from tf2_engine.tables import variable_factory
from tf2_engine.types import Nest


class TpuCores(EngineCores):
    """The cores of a TPUStrategy.

    A call inside `strategy.run` is traced once and runs on every core. Calls of different cores are
    not merged, because the device synchronizes the cores.
    """

    tables_on_device = True
    _queues_batches = True
    _inside = (
        "On a TPU each core looks its own batch up: call it inside the function that "
        "`strategy.run` runs."
    )

    def __init__(self, of_tpu: topology.Topology, count: int | None, hosts: int | None) -> None:
        self._strategy = tf.distribute.get_strategy()
        self._topology = of_tpu
        self.count, self.hosts = len(of_tpu.cores), len(of_tpu.hosts)
        self.per_replica = of_tpu.cores_per_replica or 1
        self.variable_factory = variable_factory(of_tpu.hosts)
        for name, expected, actual in (
            ("num_cores", count, self.count),
            ("num_hosts", hosts, self.hosts),
        ):
            if expected not in (None, actual):
                raise errors.InvalidSpec(
                    f"`{name}`={expected}, but the TPU has {actual}. Leave `{name}` out."
                )

    def call(
        self,
        name: str,
        values: Mapping[str, Nest],
        read: ReadCore[Value],
        function: OnCores[Value],
        *,
        from_host: bool = False,
    ) -> Nest:
        if tf_compat.tpu_computation_graph() is not None:
            results = function({0: read(values)})
            return results[0] if isinstance(results, list) else results
        if not (from_host and self._queues_batches):
            raise errors.OutOfOrder(f"`{name}` is called outside of `strategy.run`. {self._inside}")
        parts = topology.per_replica(self._strategy, dict(values))
        return function({core: read(part) for core, part in enumerate(parts)})

    def core_of(self, device: str) -> int:
        if tf_compat.tpu_computation_graph() is not None:
            raise device_inside_run(device)
        return self._topology.core_of(device)

    def initialized(self) -> bool | None:
        with tf.init_scope():
            if not tf.executing_eagerly():
                return None
            return bool(tf.raw_ops.IsTPUEmbeddingInitialized())

    def check(self, plan: Plan, batch: Batch) -> None:
        computation = tf_compat.tpu_computation_graph()
        checks.check_control_flow(computation)
        for part in batch.parts.values():
            for feature, values in zip(plan.features, part, strict=True):
                for value in values:
                    checks.check_on_host(feature.where, value)
                    if computation is not None:
                        checks.check_direct(feature.where, value)
