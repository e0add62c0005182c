"""Regularization losses of a model_fn, which `tf.compat.v1.losses` cannot find outside a graph.

Regularizers are stored with their variables. Each call computes the losses from the variables'
present values.
"""

from __future__ import annotations

import re

import tensorflow.compat.v1 as tf

from tf2_engine.training import model_variables
from tf2_engine.types import Tensor


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    """Lists the regularization losses of the model, in the order of its variables.

    Args:
        scope: a regular expression, which selects variables by name.
    """
    regularizers = model_variables.current().regularizers()
    computed = [
        regularizer()
        for name, regularizer in regularizers.items()
        if scope is None or re.match(scope, name)
    ]
    return [loss for loss in computed if loss is not None]


def get_regularization_loss(
    scope: str | None = None, name: str = "total_regularization_loss"
) -> Tensor:
    """Sums the regularization losses. The sum of no losses is 0."""
    losses = get_regularization_losses(scope)
    return tf.add_n(losses, name=name) if losses else tf.constant(0.0)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """Sums the losses of `tf.compat.v1.losses` and the regularization losses.

    Raises:
        ValueError: there are no losses.
    """
    losses = tf.losses.get_losses(scope=scope)
    if add_regularization_losses:
        losses = losses + get_regularization_losses(scope)
    if not losses:
        raise ValueError("The model has no losses to add; compute one with tf.compat.v1.losses.")
    return tf.add_n(losses, name=name)
