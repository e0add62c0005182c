"""The TPU that the driver "tpu" is tested on: the machine's own, or one in software."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tf2_engine import soft_tpu


def is_own() -> bool:
    """Returns whether the machine has a TPU: TensorFlow has kernels for one, other than ours."""
    return not soft_tpu.is_loaded() and bool(soft_tpu.ops_with_kernels())


def num_cores(wanted: int) -> int:
    """Returns the number of cores for a test that prefers `wanted` and works with any number."""
    return strategy(1).num_replicas_in_sync if is_own() else wanted


def strategy(num_cores: int) -> Any:
    """Returns a TPUStrategy over an empty TPU.

    Args:
        num_cores: the cores of a software TPU. On the machine's own TPU embedding tables need all
            of its cores; a test that wants more than those is skipped.
    """
    if not is_own():
        return soft_tpu.SoftTPUStrategy(num_cores)
    local = resolver()
    # Also forgets what an engine before has configured.
    initialize(local)
    tpu_strategy = strategy_over(local)
    if tpu_strategy.num_replicas_in_sync < num_cores:
        pytest.skip(f"needs {num_cores} cores, the TPU has {tpu_strategy.num_replicas_in_sync}")
    return tpu_strategy


# The calls to the machine's own TPU, each in a function of its own, so that tests can replace it.


def resolver() -> Any:
    return tf.distribute.cluster_resolver.TPUClusterResolver("local")


def initialize(cluster_resolver: Any) -> None:
    tf.tpu.experimental.initialize_tpu_system(cluster_resolver)


def strategy_over(cluster_resolver: Any) -> Any:
    return tf.distribute.TPUStrategy(cluster_resolver)
