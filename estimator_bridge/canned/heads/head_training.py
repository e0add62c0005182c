"""The train op and the summaries of heads that train with Keras optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads import head_checks
from estimator_bridge.canned.heads.head import HeadCall
from estimator_bridge.canned.result_names import MetricKeys
from tf2_engine import tf_compat
from tf2_engine.types import Object, Op, Tensor

MEAN = "sum_over_batch_size"
"""The reduction of Keras that divides the sum of losses by their number."""

REDUCTIONS = ("auto", "sum", MEAN)
"""The reductions of `tf.losses.Reduction` that give one loss."""


def check_one_way_to_train(call: HeadCall) -> None:
    if (call.optimizer is None) == (call.train_op_fn is None):
        count = "None" if call.optimizer is None else "set"
        raise errors.InvalidInput(
            f"train_op_fn and optimizer cannot both be {count}. Give one of them for training."
        )


def per_replica(loss: Tensor, reduction: str) -> Tensor:
    """Scales a replica's loss in a mean over all replicas, whose gradients are summed."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if reduction == MEAN and replicas > 1:
        loss *= 1.0 / replicas
    return loss


def make_train_op(loss: Tensor, reduction: str, call: HeadCall) -> Op:
    """Makes the train op of a Keras optimizer, or of a function of the program.

    Raises:
        InvalidInput: there are both, or neither; or the optimizer is not one of Keras.
    """
    head_checks.check_list("update_ops", call.update_ops)
    check_one_way_to_train(call)
    # The names of the optimizer's slots begin with this scope.
    with tf.name_scope(""), tf.name_scope("training"):
        if call.train_op_fn is not None:
            train_op = call.train_op_fn(loss)
        else:
            check_keras_optimizer(call.optimizer)
            head_checks.check_trainable(call.trainable_variables)
            of_replica = per_replica(loss, reduction)
            train_op = call.optimizer.get_updates(of_replica, call.trainable_variables)[0]
        return train_op if call.update_ops is None else tf.group(train_op, *call.update_ops)


def check_keras_optimizer(optimizer: Object) -> None:
    optimizers = tf_compat.keras2().optimizers
    if not isinstance(optimizer, (optimizers.Optimizer, optimizers.legacy.Optimizer)):
        raise errors.InvalidInput(
            "The given optimizer is not a tf.keras.optimizers.Optimizer instance. Received "
            f"optimizer of type {type(optimizer)}. Use one of tf.keras.optimizers.legacy."
        )


def add_loss_summaries(
    loss: Tensor,
    regularization_losses: Sequence[Tensor] | None,
    key_of: Callable[[str], str] = str,
) -> None:
    """Adds summaries of the loss and the regularization loss; `key_of` makes their tags."""
    with tf.name_scope(""):
        tf.summary.scalar(key_of(MetricKeys.LOSS), loss)
        if regularization_losses is not None:
            tf.summary.scalar(
                key_of(MetricKeys.LOSS_REGULARIZATION), tf.add_n(regularization_losses)
            )
