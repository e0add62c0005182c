"""Penalties for large weights, which layers add to the REGULARIZATION_LOSSES."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine import log
from tf2_engine.types import Tensor, Variable

Regularizer = Callable[[Tensor], Tensor | None]


def l1_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """Returns a penalty of scale * sum(|w|); a scale of 0.0 returns None for every weight."""
    return _scaled(scale, scope, "l1_regularizer", lambda w: tf.reduce_sum(tf.abs(w)))


def l2_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """Returns a penalty of scale * sum(w^2) / 2; a scale of 0.0 returns None for every weight."""
    return _scaled(scale, scope, "l2_regularizer", tf.nn.l2_loss)


def l1_l2_regularizer(
    scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None
) -> Regularizer:
    """Returns the sum of both penalties."""
    return sum_regularizer(
        [l1_regularizer(scale_l1), l2_regularizer(scale_l2)], scope or "l1_l2_regularizer"
    )


def sum_regularizer(
    regularizer_list: Sequence[Regularizer | None], scope: str | None = None
) -> Regularizer:
    """Returns the sum of several penalties, without those that are None."""
    regularizers = [each for each in regularizer_list if each is not None]

    def penalty(weights: Tensor) -> Tensor | None:
        with tf.name_scope(scope, "sum_regularizer", [weights]) as name:
            penalties = [each(weights) for each in regularizers]
            there = [each for each in penalties if each is not None]
            return tf.add_n(there, name=name) if there else None

    return penalty


def apply_regularization(
    regularizer: Regularizer, weights_list: Sequence[Variable] | None = None
) -> Tensor:
    """Returns the sum of the penalties of all weights, and adds them to REGULARIZATION_LOSSES.

    Args:
        regularizer: returns a scalar for each weight.
        weights_list: None are those of the collection WEIGHTS; if there are none the sum is 0.
    """
    if not weights_list:
        weights_list = tf.get_collection(tf.GraphKeys.WEIGHTS)
    if not weights_list:
        return tf.constant(0.0)
    with tf.name_scope("get_regularization_penalty", values=weights_list) as name:
        penalties = [regularizer(weights) for weights in weights_list]
        scalars = [tf.constant(0.0) if each is None else each for each in penalties]
        for each in scalars:
            if each.shape.rank != 0:
                raise errors.InvalidInput(
                    f"The regularizer {regularizer} returns a tensor of shape {each.shape}; a "
                    "penalty is a scalar."
                )
            tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, each)
        return tf.add_n(scalars, name=name)


def _scaled(
    scale: float, scope: str | None, default_name: str, norm: Callable[[Tensor], Tensor]
) -> Regularizer:
    if isinstance(scale, numbers.Integral):
        raise errors.InvalidInput(f"scale cannot be an integer: {scale!r}. Give a float.")
    if isinstance(scale, numbers.Real) and scale < 0.0:
        raise errors.InvalidInput(f"`scale`={scale} of {default_name}: it cannot be negative.")
    if isinstance(scale, numbers.Real) and scale == 0.0:
        log.info("A scale of 0 disables the regularizer.")
        return lambda _: None

    def penalty(weights: Tensor) -> Tensor:
        with tf.name_scope(scope, default_name, [weights]) as name:
            factor = tf.convert_to_tensor(scale, dtype=weights.dtype.base_dtype, name="scale")
            return tf.multiply(factor, norm(weights), name=name)

    return penalty
