"""`TPUClusterResolver` for programs that also run where there is no TPU."""

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
"""Strategies under which a model_fn would be traced by several threads at once."""


def TPUClusterResolver(  # noqa: N802
    tpu: str | None = None, zone: str | None = None, project: str | None = None, **settings: Object
) -> Object:
    """Returns the resolver of a TPU; None if none is named, and none is in this machine.

    TensorFlow's class raises then; a `RunConfig` without a cluster trains on the host.

    Args:
        tpu, zone, project, **settings: as those of TensorFlow's class.
    """
    named = tpu not in _NOWHERE or os.environ.get(_OF_TPU_VM)
    if not named and not tf.config.list_physical_devices("TPU"):
        log.info("TPUClusterResolver(%r): there is no TPU; the host trains.", tpu)
        return None
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver
    return resolver(tpu, zone=zone, project=project, **settings)


def make_strategy(config: RunConfig) -> Strategy:
    """Returns a TPUStrategy if the config names a TPU, else the strategy in whose scope it is.

    Raises:
        InvalidInput: it is a strategy that copies variables to devices, or to other machines.
    """
    resolver = config.cluster
    if resolver is None and config.master:
        resolver = TPUClusterResolver(config.master)
    if resolver is None:
        strategy: Strategy = tf.distribute.get_strategy()
        if isinstance(strategy, _COPYING):
            raise errors.InvalidInput(
                f"Trainer does not train under {type(strategy).__name__}, in whose scope it was "
                "made: its tables and the names of its variables are for one device, or a TPU. "
                "Make it outside of the scope, or in that of OneDeviceStrategy or TPUStrategy."
            )
        return strategy
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
