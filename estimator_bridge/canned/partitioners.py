"""Splits the variables of a canned model over parameter servers."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.base_run_config import RunConfig
from tf2_engine.types import Object

_LARGE_SLICE = 64 << 20  # bytes


def of_layers(config: RunConfig | None) -> Object:
    return tf.min_max_variable_partitioner(max_partitions=_servers(config))


def of_inputs(config: RunConfig | None) -> Object:
    """Splits variables of feature columns into parts of at least 64 MiB."""
    return tf.min_max_variable_partitioner(
        max_partitions=_servers(config), min_slice_size=_LARGE_SLICE
    )


def _servers(config: RunConfig | None) -> int:
    return config.num_ps_replicas if config else 0
