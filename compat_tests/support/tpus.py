"""Provides the TPU for tests of the driver "tpu": the machine's own, or a software TPU."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tf2_engine import soft_tpu


def is_own() -> bool:
    """Returns whether the machine has a TPU, that is, TensorFlow has TPU kernels besides ours."""
    return not soft_tpu.is_loaded() and bool(soft_tpu.ops_with_kernels())


def num_cores(wanted: int) -> int:
    """Returns the number of cores for a test that prefers `wanted`, but works with any number."""
    return strategy(1).num_replicas_in_sync if is_own() else wanted


def strategy(num_cores: int) -> Any:
    """Creates a TPUStrategy on a TPU that is not configured.

    Args:
        num_cores: the number of cores of a software TPU. The machine's own TPU always has all its
            cores, because embedding tables need them; if these are too few, the test is skipped.
    """
    if not is_own():
        return soft_tpu.SoftTPUStrategy(num_cores)
    local = resolver()
    # This also discards the configuration by an earlier engine.
    initialize(local)
    tpu_strategy = strategy_over(local)
    if tpu_strategy.num_replicas_in_sync < num_cores:
        pytest.skip(f"needs {num_cores} cores, the TPU has {tpu_strategy.num_replicas_in_sync}")
    return tpu_strategy


# Each call to the machine's own TPU has its own function, so that tests can replace it.


def resolver() -> Any:
    return tf.distribute.cluster_resolver.TPUClusterResolver("local")


def initialize(cluster_resolver: Any) -> None:
    tf.tpu.experimental.initialize_tpu_system(cluster_resolver)


def strategy_over(cluster_resolver: Any) -> Any:
    return tf.distribute.TPUStrategy(cluster_resolver)
