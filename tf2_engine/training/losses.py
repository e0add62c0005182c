"""Regularization losses of a model_fn, which `tf.compat.v1.losses` cannot find outside a graph.

The model keeps each regularizer together with its variable. Each call computes the losses from the
present values of the variables.
"""

from __future__ import annotations

import re

import tensorflow.compat.v1 as tf

from tf2_engine.training import model_variables
from tf2_engine.types import Tensor

_OF_LAYER = "/Regularizer/"
"""Layers of `tf.compat.v1.layers` add a loss in this scope, although the variable also has a loss.
"""


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    """Lists the regularization losses of the model, in the order of the model's variables.

    After these losses come losses that the model_fn itself added to the collection, with
    `tf.compat.v1.losses.add_loss` or `tf.compat.v1.add_to_collection`.

    Args:
        scope: a regular expression. Variables and losses whose names do not match are left out.
    """
    computed = [
        regularizer()
        for name, regularizer in model_variables.current().regularizers()
        if scope is None or re.match(scope, name)
    ]
    added = [
        loss for loss in tf.losses.get_regularization_losses(scope) if _OF_LAYER not in loss.name
    ]
    return [*(loss for loss in computed if loss is not None), *added]


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
