"""Pads short batches in predictions to the size that a TPU needs, and removes the padding."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tf2_engine.types import Array, Nest, Tensor

PRESENT = "short_batches/present"
"""The key of a mask in a padded batch and in its predictions; the mask is False for padding."""


def filled(batch: Mapping[str, Nest], size: int) -> dict[str, Nest]:
    """Pads a batch to `size` samples.

    The added samples have no ids; all their other values are zero or "".

    Args:
        batch: tensors whose first dimension is samples, and SparseTensors under "ids".

    Raises:
        InvalidArgumentError: at run time, if the batch has more samples.
    """
    samples = tf.cast(next(iter(batch["ids"].values())).dense_shape[0], tf.int32)
    fits = tf.debugging.assert_less_equal(
        samples,
        size,
        f"A TPU is configured for batches of {size} samples, the `train_batch_size`, but a batch "
        f"of predictions has more. Set `predict_batch_size` to at most {size}.",
    )
    with tf.control_dependencies([fits] if fits is not None else []):
        missing = size - samples

    def fill(value: Nest) -> Nest:
        if isinstance(value, tf.SparseTensor):
            shape = tf.concat([[tf.cast(samples + missing, tf.int64)], value.dense_shape[1:]], 0)
            return tf.SparseTensor(value.indices, value.values, shape)
        if isinstance(value, tf.RaggedTensor):
            splits = value.row_splits
            splits = tf.concat([splits, tf.fill([missing], splits[-1])], 0)
            return tf.RaggedTensor.from_row_splits(value.values, splits, validate=False)
        return _fill_dense(value, missing, size) if value.shape.rank else value

    return {**tf.nest.map_structure(fill, batch), PRESENT: tf.range(size) < samples}


def cut(predictions: Mapping[str, Array]) -> dict[str, Array]:
    present = predictions.get(PRESENT)
    return {
        key: value if present is None or not value.shape else value[present]
        for key, value in predictions.items()
        if key != PRESENT
    }


def _fill_dense(value: Tensor, missing: Tensor, size: int) -> Tensor:
    zeros = tf.zeros(tf.concat([[missing], tf.shape(value)[1:]], 0), value.dtype)
    return tf.ensure_shape(tf.concat([value, zeros], 0), [size, *value.shape[1:]])
