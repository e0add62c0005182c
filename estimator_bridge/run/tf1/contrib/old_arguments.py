"""Functions of TensorFlow 2 with the arguments that these functions had in `tf.contrib`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from tf2_engine import tf_compat
from tf2_engine.types import Dataset, Nest, Object, Strategy

Transformation = Callable[[Dataset], Dataset]


def batch_and_drop_remainder(batch_size: int) -> Transformation:
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: int, padded_shapes: Nest, padding_values: Nest = None
) -> Transformation:
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )


def MirroredStrategy(  # noqa: N802 - TensorFlow's name
    devices: Sequence[str] | None = None,
    num_gpus: int | None = None,
    num_gpus_per_worker: int | None = None,
    cross_device_ops: Object = None,
    auto_shard_dataset: bool = False,
) -> Strategy:
    count = num_gpus if num_gpus_per_worker is None else num_gpus_per_worker
    if devices is None and count:
        devices = [f"/gpu:{number}" for number in range(count)]
    elif devices is None and count == 0:
        devices = ["/cpu:0"]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=cross_device_ops)


def index_table_from_tensor(mapping: Object, *arguments: Object, **settings: Object) -> Object:
    return tf_compat.index_table_from_tensor(mapping, *arguments, **settings)


def index_to_string_table_from_tensor(
    mapping: Object, *arguments: Object, **settings: Object
) -> Object:
    return tf_compat.index_to_string_table_from_tensor(mapping, *arguments, **settings)
