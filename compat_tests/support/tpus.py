"""The TPU that the driver "tpu" is tested on: the machine's own, or one in software."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tf2_engine import soft_tpu


def is_own() -> bool:
    """Whether the machine has a TPU: TensorFlow has kernels for one, and they are not ours."""
    return not soft_tpu.is_loaded() and bool(soft_tpu.ops_with_kernels())


def num_cores(wanted: int) -> int:
    """Returns how many cores a test can have that would like so many, and takes any number."""
    return strategy(1).num_replicas_in_sync if is_own() else wanted


def strategy(num_cores: int) -> Any:
    """Returns a TPUStrategy over an empty TPU.

    Args:
        num_cores: of a software TPU. A TPU of the machine's own has the cores it has, and embedding
            tables need all of them; where that are less, the test is left out.
    """
    if not is_own():
        return soft_tpu.SoftTPUStrategy(num_cores)
    local = resolver()
    # Also forgets what an engine before has configured.
    initialize(local)
    found = strategy_over(local)
    if found.num_replicas_in_sync < num_cores:
        pytest.skip(f"needs {num_cores} cores, the TPU has {found.num_replicas_in_sync}")
    return found


# What asks the machine's own TPU, each by itself, so that a stand-in can take its place.


def resolver() -> Any:
    """Returns what finds the TPU of this machine."""
    return tf.distribute.cluster_resolver.TPUClusterResolver("local")


def initialize(found: Any) -> None:
    """Makes its TPU ready."""
    tf.tpu.experimental.initialize_tpu_system(found)


def strategy_over(found: Any) -> Any:
    """Returns a TPUStrategy over all its cores."""
    return tf.distribute.TPUStrategy(found)
