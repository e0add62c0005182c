"""Gradients of a model's variables; what they are taken of also trains the tables.

A model_fn calls these functions in place of the methods of its optimizers. The strategy adds the
gradients of all replicas, so that each replica contributes its share of the loss, as with
`tf.compat.v1.tpu.CrossShardOptimizer`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from tf2_engine.types import Nest, Object, Op, Tensor, Variable

GradientsAndVariables = list[tuple[Tensor | None, Variable]]


class Differentiated(NamedTuple):
    """A loss whose gradient a model_fn has taken, and the share of this replica in it."""

    loss: Tensor
    share: Tensor


class _OfThread(threading.local):
    """The losses that the replica traced in this thread has differentiated."""

    def __init__(self) -> None:
        self.losses: list[Differentiated] | None = None


_here = _OfThread()


@contextlib.contextmanager
def recorded() -> Iterator[list[Differentiated]]:
    """Yields a list to which the losses are added whose gradients are taken in the context."""
    before, _here.losses = _here.losses, []
    try:
        yield _here.losses
    finally:
        _here.losses = before


def minimize(
    optimizer: Object,
    loss: Tensor,
    global_step: Variable | None = None,
    *args: Object,
    **settings: Object,
) -> Op:
    """Trains variables of a model, and the tables, by the gradient of the loss.

    Args:
        optimizer: of `tf.compat.v1.train`, or with the same methods.
        loss: scalar; the gradient of its share of this replica is applied.
        global_step: has no effect: `Trainer` counts each step.
        *args, **settings: as those of `optimizer.minimize`: `var_list` and others.
    """
    with _recording(loss) as share:
        return optimizer.minimize(share, None, *args, **settings)


def compute_gradients(
    optimizer: Object, loss: Tensor, *args: Object, **settings: Object
) -> GradientsAndVariables:
    """Returns the gradients of the loss, to be changed and applied by `apply_gradients`.

    The tables are trained by the gradient of the loss, whatever becomes of those that are returned:
    clipping, for instance, does not reach the tables, as in a TPUEstimator.

    Args:
        optimizer, loss, *args, **settings: as those of `minimize`.
    """
    with _recording(loss) as share:
        pairs: GradientsAndVariables = optimizer.compute_gradients(share, *args, **settings)
        return pairs


def gradients(ys: Nest, xs: Nest, *args: Object, **settings: Object) -> list[Tensor | None]:
    """Returns `tf.gradients(ys, xs)`; if some of `xs` are trainable variables, `ys` trains tables.

    In contrast to `minimize`, every replica contributes all of `ys`, as in the legacy program.
    """
    trains = any(getattr(x, "trainable", False) for x in tf.nest.flatten(xs))
    if trains and _here.losses is not None:
        total = tf.add_n([tf.reduce_sum(y) for y in tf.nest.flatten(ys)])
        _here.losses.append(Differentiated(tf.nest.flatten(ys)[0], total))
    result: list[Tensor | None] = tf.gradients(ys, xs, *args, **settings)
    return result


def CrossShardOptimizer(opt: Object, *args: Object, **settings: Object) -> Object:  # noqa: N802
    """Returns the optimizer itself: the strategy adds the gradients of its replicas."""
    return opt


@contextlib.contextmanager
def _recording(loss: Tensor) -> Iterator[Tensor]:
    """Yields the share of a loss; records it unless an optimizer calls from within another."""
    losses = _here.losses
    if losses is None:
        yield loss
        return
    share = loss / tf.distribute.get_strategy().num_replicas_in_sync
    losses.append(Differentiated(loss, share))
    _here.losses = None
    try:
        yield share
    finally:
        _here.losses = losses
