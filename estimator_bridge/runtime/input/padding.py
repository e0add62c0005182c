"""Pads the batches of a prediction to one size, and removes the predictions of the padding."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Ids, Nest, Tensor


def pad_batch(features: Nest, size: int) -> tuple[Nest, Tensor | None]:
    """Pads a batch with zeros and empty rows to the static shape [size, ...].

    Returns the nest and the number of samples in the batch, int64, or None if the batch is known to
    be full. The op fails at run time if the batch has more samples than `size`.

    Raises:
        InvalidInput: the static shape shows that batches have more than `size` samples.
    """
    leaves = [leaf for leaf in tf.nest.flatten(features) if leaf is not None and leaf.shape.rank]
    if all(_samples(leaf) == size for leaf in leaves):
        return features, None
    too_large = f"A batch has more samples than `predict_batch_size`={size}."
    if any((_samples(leaf) or 0) > size for leaf in leaves):
        raise errors.InvalidInput(too_large)
    real = _rows(leaves[0])
    fits = tf.debugging.assert_less_equal(real, tf.constant(size, tf.int64), message=too_large)
    with tf.control_dependencies([fits]):
        real = tf.identity(real)
    missing = size - real
    return tf.nest.map_structure(lambda leaf: _padded(leaf, size, missing), features), real


def cut_predictions(predictions: Nest, size: int, real: Tensor | None) -> Nest:
    """Removes the predictions of the padding: [size, ...] becomes [real, ...]."""
    if real is None:
        return predictions

    def cut(value: Tensor) -> Tensor:
        return value[:real] if value.shape.rank and _samples(value) in (None, size) else value

    return tf.nest.map_structure(cut, predictions)


def _samples(leaf: Ids) -> int | None:
    """The first dimension if it is static. It is an int even after `disable_v2_behavior`."""
    first: int | None = leaf.shape.as_list()[0]
    return first


def _rows(leaf: Ids) -> Tensor:
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    return tf.shape(leaf, out_type=tf.int64)[0]


def _padded(leaf: Ids | None, size: int, missing: Tensor) -> Ids | None:
    if leaf is None or not leaf.shape.rank or _samples(leaf) == size:
        return leaf
    if isinstance(leaf, tf.SparseTensor):
        shape = tf.concat([tf.constant([size], tf.int64), leaf.dense_shape[1:]], 0)
        # The new shape does not depend on the number of samples, so the check needs its own
        # dependency.
        with tf.control_dependencies([missing]):
            return tf.SparseTensor(tf.identity(leaf.indices), leaf.values, shape)
    if isinstance(leaf, tf.RaggedTensor):
        splits = tf.concat([leaf.row_splits, tf.fill([missing], leaf.row_splits[-1])], 0)
        return tf.RaggedTensor.from_row_splits(leaf.values, splits, validate=False)
    around = tf.concat([tf.reshape(missing, [1]), tf.zeros([leaf.shape.rank - 1], tf.int64)], 0)
    padded = tf.pad(leaf, tf.stack([tf.zeros_like(around), around], 1))
    return tf.ensure_shape(padded, [size, *leaf.shape.as_list()[1:]])
