"""Checks the gradients that a model returns."""

from __future__ import annotations

import warnings

import tensorflow as tf

from tf2_engine import callers, errors
from tf2_engine.plan import FeaturePlan
from tf2_engine.types import Object, Tensor


def read(feature: FeaturePlan, value: Object, cores_per_replica: int = 1) -> Tensor:
    """Checks the gradient of one feature's activation: [*output_shape, dim] float32.

    `value` is a tensor or IndexedSlices whose first dimension covers all cores of a replica. None
    means zeros, with a warning.
    """
    first, *rest = feature.output_shape
    expected = [None if first is None else first * cores_per_replica, *rest, feature.table.dim]
    if value is None:
        if feature.cells is None:
            raise errors.InvalidInput(
                f"{feature.where}: the gradient is None, and the batch size is not fixed, so "
                "zeros cannot stand in for it. Pass zeros of the shape of the activation."
            )
        warnings.warn(
            f"{feature.where}: the gradient is None; zeros are used. Optimizers other than SGD "
            "may move rows at a zero gradient.",
            stacklevel=callers.frames_to_the_caller(),
        )
        return tf.zeros(expected, tf.float32)
    if isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
    if not isinstance(value, tf.Tensor):
        raise errors.WrongKind(
            f"{feature.where}: found non-tensor type {type(value).__name__} for its gradient. Pass "
            "a tensor."
        )
    if value.dtype != tf.float32:
        raise errors.WrongType(
            f"{feature.where}: a gradient must be float32, got {value.dtype.name}."
        )
    if not value.shape.is_compatible_with(expected):
        raise errors.InvalidInput(
            f"{feature.where}: found a gradient of shape {value.shape}, expected {expected}."
        )
    # Sizes that are only known at run time are checked at run time.
    return value if value.shape.is_fully_defined() else tf.ensure_shape(value, expected)
