"""Builds steps under a strategy, without an engine: the model once per replica."""

from __future__ import annotations

import dataclasses

import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.input.feeding import read_per_replica
from estimator_bridge.runtime.program_types import CallModel, LookUp, ReadInput
from estimator_bridge.runtime.step.model_step import MetricOps, ModelStep, metric_ops
from estimator_bridge.runtime.step.plain_step import trace_step
from tf2_engine import tf_compat
from tf2_engine.types import Op, Strategy


def build_replicated_step(
    strategy: Strategy,
    mode: str,
    input_fn: ReadInput,
    model_fn: CallModel,
    look_up: LookUp | None = None,
) -> ModelStep:
    """Builds a step of training or evaluation in the default graph, in the strategy's scope.

    Each replica takes another batch from the input: a step has as many batches as replicas.
    Optimizers of TensorFlow 1 sum the gradients of the replicas, and scale the loss.

    Args:
        input_fn, model_fn, look_up: as those of `build_plain_step`.

    Raises:
        InvalidInput: the input_fn returns no dataset.
    """
    count = strategy.num_replicas_in_sync
    batches, hooks = read_per_replica(input_fn, count)
    restore_keras_names = tf_compat.remember_keras_names(tf.get_default_graph())
    steps: list[ModelStep] = []
    mean_losses: list[MetricOps] = []

    def replica(number: int) -> tuple[()]:
        # Replicas are traced one after the other, up to their merge calls.
        if number:
            restore_keras_names()
        step = trace_step(mode, batches[number], [], model_fn, look_up)
        if mode == ModeKeys.EVAL:
            metrics = {name: metric_ops(metric) for name, metric in step.eval_metric_ops.items()}
            step = dataclasses.replace(step, eval_metric_ops=metrics)
            # Made in the context of a replica, it is over all replicas.
            mean_losses.append(tf.metrics.mean(step.loss))
        steps.append(step)
        return ()

    tf_compat.call_for_each_replica(strategy, replica, [(number,) for number in range(count)])
    loss = tf.add_n([tf.convert_to_tensor(step.loss) for step in steps])
    if tf_compat.is_loss_scaled(tf.get_default_graph()):
        loss /= count
    step = dataclasses.replace(steps[0], loss=loss, input_hooks=tuple(hooks))
    if mode == ModeKeys.TRAIN:
        return dataclasses.replace(step, train_op=_group([step.train_op for step in steps]))
    metrics = {
        name: _over_replicas([step.eval_metric_ops[name] for step in steps])
        for name in step.eval_metric_ops
    }
    return dataclasses.replace(step, eval_metric_ops=metrics, mean_loss=_over_replicas(mean_losses))


def _over_replicas(metrics: list[MetricOps]) -> MetricOps:
    """Returns the value of a metric and the updates of all replicas in one op."""
    return metrics[0][0], _group([update for _, update in metrics])


def _group(ops: list[Op]) -> Op:
    strategy = tf.distribute.get_strategy()
    return tf.group(*[part for op in ops for part in strategy.experimental_local_results(op)])
