"""Builds steps without an engine: the model as an ordinary Estimator runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.input.feeding import read_batch, read_per_replica
from estimator_bridge.runtime.program_types import Batch, CallModel, LookUp, ReadInput
from estimator_bridge.runtime.step import model_step
from estimator_bridge.runtime.step.model_step import MetricOps, ModelStep
from tf2_engine import soft_tpu, tf_compat
from tf2_engine.types import Op, Strategy


def build_plain_step(
    mode: str,
    input_fn: ReadInput,
    model_fn: CallModel,
    look_up: LookUp | None = None,
    strategy: Strategy | None = None,
) -> ModelStep:
    """Builds a step in the default graph, in the scope of the strategy.

    Args:
        look_up: applied to the features before the model gets them; None leaves them as they are.
        strategy: runs the model once per replica, each with a batch of its own; None runs it once.

    Raises:
        InvalidInput: the strategy needs an engine; or it has several replicas, and the input_fn
            returns no dataset.
    """

    def trace(batch: Batch) -> ModelStep:
        features, labels = batch
        spec = model_fn(features if look_up is None else look_up(features), labels)
        model_step.check_spec(mode, spec)
        chief_hooks = getattr(spec, "training_chief_hooks", None) or ()
        step = model_step.step_of_specs(mode, [spec])
        return dataclasses.replace(step, chief_hooks=tuple(chief_hooks))

    if strategy is None:
        (features, labels), hooks = read_batch(input_fn)
        step = trace((features, None if mode == ModeKeys.PREDICT else labels))
    elif isinstance(strategy, soft_tpu.SoftTPUStrategy):
        raise errors.InvalidInput(
            f"`RunConfig`: {strategy!r} needs a TPUEstimator with use_tpu=True, as a TPU does."
        )
    else:
        batches, hooks = read_per_replica(input_fn, strategy.num_replicas_in_sync)
        step = _replicated(mode, batches, trace, strategy)
    return dataclasses.replace(step, input_hooks=tuple(hooks))


def _replicated(
    mode: str, batches: list[Batch], trace: Callable[[Batch], ModelStep], strategy: Strategy
) -> ModelStep:
    """Traces the model for each replica, and joins training or evaluation of all.

    Optimizers of TensorFlow 1 sum the gradients of the replicas, and scale the loss.
    """
    graph = tf.get_default_graph()
    restore_keras_names = tf_compat.remember_keras_names(graph)
    steps: list[ModelStep] = []
    mean_losses: list[MetricOps] = []

    def replica(number: int) -> tuple[()]:
        # Replicas are traced one after the other, up to their merge calls.
        if number:
            restore_keras_names()
        step = trace(batches[number])
        if mode == ModeKeys.EVAL:
            metrics = {
                name: model_step.metric_ops(metric) for name, metric in step.eval_metric_ops.items()
            }
            step = dataclasses.replace(step, eval_metric_ops=metrics)
            # Made in the context of a replica, it is over all replicas.
            mean_losses.append(tf.metrics.mean(step.loss))
        steps.append(step)
        return ()

    numbers = [(number,) for number in range(len(batches))]
    tf_compat.call_for_each_replica(strategy, replica, numbers)
    loss = tf.add_n([tf.convert_to_tensor(step.loss) for step in steps])
    if tf_compat.is_loss_scaled(graph):
        loss /= len(batches)
    step = dataclasses.replace(steps[0], loss=loss)
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
