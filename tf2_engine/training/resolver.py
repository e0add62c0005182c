"""`TPUClusterResolver` for programs that also run without a TPU."""

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
    """Returns the resolver of a TPU, or None if no TPU is named and this machine has no TPU.

    (TensorFlow's class would raise an error.) If `RunConfig` gets None as its cluster, the host
    trains.

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
    """Creates a TPUStrategy if the config names a TPU; otherwise returns the strategy in scope.

    Raises:
        InvalidInput: the strategy in scope copies variables to several devices or machines.
    """
    resolver = config.cluster
    if resolver is None and config.master:
        resolver = TPUClusterResolver(config.master)
    if resolver is None:
        strategy: Strategy = tf.distribute.get_strategy()
        if isinstance(strategy, _COPYING):
            raise errors.InvalidInput(
                f"Trainer does not train under {type(strategy).__name__}, in whose scope it was "
                "made: its tables and variable names are made for a single device or a TPU. "
                "Make it outside of the scope, or in the scope of a OneDeviceStrategy or a "
                "TPUStrategy."
            )
        return strategy
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
