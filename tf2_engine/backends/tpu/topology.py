"""The hosts and cores of a TPU, read from its strategy."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.types import Nest, Object, Strategy

_Value = TypeVar("_Value")

STRATEGIES = (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy)
"""The strategies that run on a TPU, or on a stand-in for a TPU."""


@dataclasses.dataclass(frozen=True)
class Core:
    """A core: its device, the CPU device that feeds the core, and the core's index on this host."""

    device: str
    host: str
    ordinal: int


@dataclasses.dataclass(frozen=True)
class Topology:
    """The hosts and cores over which a plan is spread.

    Shard i of every table is on `hosts[i]`, a CPU. Cores are ordered by replica.
    `cores_per_replica` is None without model parallelism. With any number, even 1, the device is
    configured for model parallelism.
    """

    hosts: tuple[str, ...]
    cores: tuple[Core, ...]
    cores_per_replica: int | None = None

    def core_of(self, device: str) -> int:
        pattern = _spec(device)
        if pattern.device_type != "TPU":
            raise errors.InvalidInput(
                f"`device`={device!r} is not a TPU core. Pass one of "
                "`strategy.extended.worker_devices`, or the end of its name, as in "
                "'/task:0/device:TPU:2'; or no device at all, to feed every core."
            )
        positions = [
            position
            for position, core in enumerate(self.cores)
            if all(
                getattr(pattern, field) in (None, getattr(_spec(core.device), field))
                for field in ("job", "replica", "task", "device_index")
            )
        ]
        if len(positions) != 1:
            raise errors.InvalidInput(
                f"`device`={device!r} matches {'several' if positions else 'none'} of the TPU's "
                f"cores {[core.device for core in self.cores]}."
            )
        return positions[0]


def is_tpu(strategy: Strategy) -> bool:
    return isinstance(strategy, STRATEGIES)


def read_topology(strategy: Strategy) -> Topology:
    if not is_tpu(strategy):
        raise errors.OutOfOrder(
            "driver='tpu' needs a tf.distribute.TPUStrategy, but the current strategy is "
            f"{type(strategy).__name__}. Make the engine under `strategy.scope()`, or use "
            "driver='host', which computes the same results without a TPU."
        )
    devices, cores_per_replica = tf_compat.tpu_devices(strategy)
    cores = tuple(_core(device) for replica in devices for device in replica)
    # Stock and checkpoints number the hosts in this order, which may differ from the order of
    # cores.
    by_task = sorted(cores, key=lambda core: _position(core.device))
    hosts = tuple(dict.fromkeys(core.host for core in by_task))
    return Topology(hosts, cores, cores_per_replica)


def check_hardware(strategy: Strategy) -> None:
    """Raises an error if the TPU is known to have embedding hardware of a later generation."""
    hardware = tf_compat.embedding_hardware(strategy)
    if hardware not in (None, "V1"):
        raise errors.InvalidSpec(
            f"The TPU's embedding hardware is {hardware} (`strategy.extended.tpu_hardware_feature."
            "embedding_feature`), but driver='tpu' drives V1. Leave `driver` out, which selects "
            "driver='sparsecore' for V2; or make the engine outside of the strategy's scope, where "
            "driver='host' computes the same results on the host."
        )


def per_replica(strategy: Strategy, value: Nest) -> list[Nest]:
    return [values[0] for values in strategy.experimental_local_results([value])]


def part(where: str, value: _Value, number: int, count: int | None) -> _Value:
    if count is None or value is None:
        return value
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.split(value, num_split=count, axis=0)[number]
    if isinstance(value, tf.RaggedTensor):
        raise errors.InvalidInput(
            f"{where}: a ragged tensor cannot be split over the {count} cores of a replica. Pass "
            "a sparse tensor, or make the strategy without a device assignment."
        )
    return tf.split(value, count, axis=0)[number]


def _core(device: str) -> Core:
    spec = _spec(device)
    host = spec.replace(device_type="CPU", device_index=0)
    return Core(device, host.to_string(), spec.device_index or 0)


def _position(device: str) -> tuple[int, int, int]:
    spec = _spec(device)
    return (spec.replica or 0, spec.task or 0, spec.device_index or 0)


def _spec(device: str) -> Object:
    return tf.DeviceSpec.from_string(device)
