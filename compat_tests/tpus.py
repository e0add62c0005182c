"""The TPU that the driver "tpu" is tested on: the machine's own, or one in software."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tf2_engine import soft_tpu


def is_own() -> bool:
    """Whether the machine has a TPU: TensorFlow has kernels for one, and they are not ours."""
    return not soft_tpu.is_loaded() and bool(soft_tpu.ops_with_kernels())


def strategy(num_cores: int) -> Any:
    """Returns a TPUStrategy over an empty TPU.

    Args:
        num_cores: of a software TPU. A TPU of the machine's own has the cores it has, and embedding
            tables need all of them; where that are less, the test is left out.
    """
    if not is_own():
        return soft_tpu.SoftTPUStrategy(num_cores)
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
    # Also forgets what an engine before has configured.
    tf.tpu.experimental.initialize_tpu_system(resolver)
    found = tf.distribute.TPUStrategy(resolver)
    if found.num_replicas_in_sync < num_cores:
        pytest.skip(f"needs {num_cores} cores, the TPU has {found.num_replicas_in_sync}")
    return found
