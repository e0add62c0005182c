"""A distribution strategy with the arguments that it had."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from tf2_engine.types import Object, Strategy


def MirroredStrategy(  # noqa: N802 - TensorFlow's name
    devices: Sequence[str] | None = None,
    num_gpus: int | None = None,
    num_gpus_per_worker: int | None = None,
    cross_device_ops: Object = None,
    auto_shard_dataset: bool = False,
) -> Strategy:
    """Returns a MirroredStrategy of the devices, or of as many GPUs."""
    count = num_gpus if num_gpus_per_worker is None else num_gpus_per_worker
    if devices is None and count:
        devices = [f"/gpu:{number}" for number in range(count)]
    elif devices is None and count == 0:
        devices = ["/cpu:0"]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=cross_device_ops)
