"""The cores of a TPU, as an engine's calls reach them."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.backends.interface import (
    EngineCall,
    EngineCores,
    StepInputs,
    Value,
    device_inside_run,
)
from tf2_engine.backends.tpu import checks, topology
from tf2_engine.plan import Plan
from tf2_engine.tables import variable_factory
from tf2_engine.types import Nest


class TpuCores(EngineCores):
    """The cores of a TPUStrategy. Raises InvalidSpec if the TPU has other numbers than asked for.

    A call inside `strategy.run` is traced once and runs on every core. Each core calls for itself;
    calls are not merged, and the device synchronizes the cores of a step.
    """

    tables_on_device = True

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

    def call(self, call: EngineCall[Value]) -> Nest:
        if tf_compat.tpu_computation_graph() is not None:
            results = call.function({0: call.read(call.values)})
            return results[0] if isinstance(results, list) else results
        if not call.from_host:
            raise errors.OutOfOrder(
                f"`{call.name}` is called outside of `strategy.run`. On a TPU each core looks its "
                "own batch up: call it inside the function that `strategy.run` runs."
            )
        parts = topology.per_replica(self._strategy, dict(call.values))
        return call.function({core: call.read(part) for core, part in enumerate(parts)})

    def core_of(self, device: str) -> int:
        if tf_compat.tpu_computation_graph() is not None:
            raise device_inside_run(device)
        return self._topology.core_of(device)

    def check(self, plan: Plan, inputs: StepInputs) -> None:
        computation = tf_compat.tpu_computation_graph()
        checks.check_control_flow(computation)
        for part in inputs.parts.values():
            for feature, values in zip(plan.features, part, strict=True):
                for value in values:
                    checks.check_on_host(feature.where, value)
                    if computation is not None:
                        checks.check_direct(feature.where, value)
