"""Batches of predictions filled up to the size that a TPU is configured for, and cut again."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tf2_engine.types import Array, Nest, Tensor

PRESENT = "short_batches/present"
"""The key, of a filled batch and of its predictions, of which samples are no padding."""


def filled(batch: Mapping[str, Nest], size: int) -> dict[str, Nest]:
    """Returns a batch of at most `size` samples as one of `size`.

    Samples that are added have no ids; their numbers are 0 and their strings "".

    Args:
        batch: tensors of any kind, the samples first, and at "ids" SparseTensors.
    """
    samples = next(iter(batch["ids"].values())).dense_shape[0]

    def fill(value: Nest) -> Nest:
        if isinstance(value, tf.SparseTensor):
            shape = tf.concat([[tf.cast(size, tf.int64)], value.dense_shape[1:]], 0)
            return tf.SparseTensor(value.indices, value.values, shape)
        if isinstance(value, tf.RaggedTensor):
            missing = tf.cast(size - samples, value.row_splits.dtype)
            splits = tf.concat([value.row_splits, tf.fill([missing], value.row_splits[-1])], 0)
            return tf.RaggedTensor.from_row_splits(value.values, splits, validate=False)
        return _fill_dense(value, size) if value.shape.rank else value

    return {
        **tf.nest.map_structure(fill, batch),
        PRESENT: tf.range(size) < tf.cast(samples, tf.int32),
    }


def cut(predictions: Mapping[str, Array]) -> dict[str, Array]:
    """Returns predictions of a filled batch without those of padding; others as they are."""
    present = predictions.get(PRESENT)
    return {
        key: value if present is None or not value.shape else value[present]
        for key, value in predictions.items()
        if key != PRESENT
    }


def _fill_dense(value: Tensor, size: int) -> Tensor:
    shape = tf.shape(value)
    missing = tf.zeros(tf.concat([[size - shape[0]], shape[1:]], 0), value.dtype)
    return tf.ensure_shape(tf.concat([value, missing], 0), [size, *value.shape[1:]])
