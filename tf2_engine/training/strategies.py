"""Strategies for programs that also run without a TPU, and information about replicas."""

from __future__ import annotations

import os

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.training.trainer_specs import RunConfig
from tf2_engine.types import Object, Strategy

_NOWHERE = (None, "", "local")
_OF_TPU_VM = "TPU_NAME"

_COPYING = (
    *(tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy),
    *(tf.distribute.ParameterServerStrategy, tf.distribute.experimental.CentralStorageStrategy),
)
"""Strategies under which several threads would trace a model_fn at the same time."""


def TPUClusterResolver(  # noqa: N802
    tpu: str | None = None, zone: str | None = None, project: str | None = None, **settings: Object
) -> Object:
    """Returns the resolver for a TPU, or None if no TPU is named and this machine has no TPU.

    A `Trainer` with `RunConfig(cluster=None)` trains on the host.

    Args:
        tpu, zone, project, **settings: as for TensorFlow's class.
    """
    named = tpu not in _NOWHERE or os.environ.get(_OF_TPU_VM)
    if not named and not tf.config.list_physical_devices("TPU"):
        log.info("TPUClusterResolver(%r): there is no TPU; the host trains.", tpu)
        return None
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver
    return resolver(tpu, zone=zone, project=project, **settings)


def make_strategy(config: RunConfig) -> Strategy:
    resolver = config.cluster
    if resolver is None and config.master:
        resolver = TPUClusterResolver(config.master)
    strategy = tpu_strategy(resolver)
    if isinstance(strategy, _COPYING):
        raise errors.InvalidInput(
            f"Trainer does not train under {type(strategy).__name__}, in whose scope it was made: "
            "its tables and variable names are made for a single device or a TPU. Make it outside "
            "of the scope, or in the scope of a OneDeviceStrategy or a TPUStrategy."
        )
    return strategy


_HOST = "/replica:0/task:0/device:CPU:0"


class ReplicaContext:
    """Presents the replicas of a strategy as one host, with the methods of stock's TPUContext.

    `device_assignment` is None, because each replica has one core.
    """

    num_hosts = 1
    current_host = 0
    device_assignment = None

    def __init__(self, strategy: Strategy) -> None:
        self.num_replicas = self.num_of_replicas_per_host = int(strategy.num_replicas_in_sync)

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Returns the host's device, the index of this input_fn call, and two counts.

        The counts are the number of input_fn calls and the number of replicas.
        """
        return _HOST, 0, 1, self.num_replicas

    def device_for_replica(self, replica_id: int) -> tuple[str, int]:
        """Returns the device of a replica's host, and the replica's position on this host."""
        if not 0 <= replica_id < self.num_replicas:
            raise errors.InvalidInput(
                f"There is no replica {replica_id}; the strategy has {self.num_replicas}."
            )
        return _HOST, replica_id

    def tpu_host_placement_function(self, host_id: int = 0) -> str:
        return _HOST


def tpu_strategy(resolver: Object) -> Strategy:
    """Connects to a TPU and returns its TPUStrategy. Without a TPU, returns the current strategy.

    Args:
        resolver: the result of `tf2_engine.training.TPUClusterResolver`; None if there is no TPU.
    """
    if resolver is None:
        strategy: Strategy = tf.distribute.get_strategy()
        return strategy
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
