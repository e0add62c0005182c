"""`create_train_op`: a step of an optimizer that also updates moving averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from tf2_engine.types import Object, Op, Tensor, Variable

GradientsAndVariables = list[tuple[Tensor, Variable]]

_GLOBAL_STEP = 0  # Stands for the graph's own, as None is for none.


def create_train_op(
    total_loss: Tensor,
    optimizer: Object,
    global_step: Object = _GLOBAL_STEP,
    update_ops: Sequence[Op] | None = None,
    variables_to_train: Sequence[Variable] | None = None,
    transform_grads_fn: Callable[[GradientsAndVariables], GradientsAndVariables] | None = None,
    summarize_gradients: bool = False,
    gate_gradients: int = tf.train.Optimizer.GATE_OP,
    aggregation_method: int | None = None,
    colocate_gradients_with_ops: bool = False,
    check_numerics: bool = True,
) -> Tensor:
    """Returns the loss as a tensor whose evaluation makes a step.

    Args:
        total_loss: scalar.
        global_step: incremented; None is none, and the default the graph's.
        update_ops: run before the loss is computed; None are those of UPDATE_OPS.
        transform_grads_fn: takes and returns pairs of gradients and variables.
        check_numerics: fails if the loss is infinite or NaN.
    """
    step = tf.train.get_or_create_global_step() if global_step is _GLOBAL_STEP else global_step
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops
    if updates:
        with tf.control_dependencies(list(updates)):
            total_loss = tf.identity(total_loss)
    gradients = optimizer.compute_gradients(
        total_loss,
        variables_to_train or tf.trainable_variables(),
        gate_gradients=gate_gradients,
        aggregation_method=aggregation_method,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
    )
    if transform_grads_fn is not None:
        gradients = transform_grads_fn(gradients)
    if summarize_gradients:
        for gradient, variable in gradients:
            if gradient is not None:
                values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
                tf.summary.histogram(f"{variable.op.name}_gradient", values)
                tf.summary.scalar(f"{variable.op.name}_gradient_norm", tf.global_norm([values]))
    applied = optimizer.apply_gradients(gradients, global_step=step)
    if check_numerics:
        total_loss = tf.check_numerics(total_loss, "LossTensor is inf or nan")
    with tf.control_dependencies([applied]):
        train_op = tf.identity(total_loss, name="train_op")
    tf.get_collection_ref(tf.GraphKeys.TRAIN_OP).append(train_op)
    return train_op
