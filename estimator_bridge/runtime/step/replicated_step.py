"""Steps under a strategy, without an engine: the model once per replica of the strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.input.feeding import read_per_replica
from estimator_bridge.runtime.step.model_step import Step
from estimator_bridge.runtime.step.plain_step import metric_ops, step_of_spec
from tf2_engine import tf_compat


def build_replicated_step(
    strategy: Any,
    mode: str,
    input_fn: Callable[[], Any],
    model_fn: Callable[[Any, Any], Any],
    look_up: Callable[[Any], Any] | None = None,
) -> Step:
    """Builds a step of training or evaluation in the default graph, in the strategy's scope.

    Each replica takes a batch of its own from the input: a step has as many batches as there are
    replicas. Optimizers of TensorFlow 1 sum the gradients of the replicas, and scale the loss.

    Args:
        input_fn, model_fn, look_up: as those of `build_plain_step`.

    Raises:
        InvalidInput: the input_fn gives no dataset.
    """
    count = strategy.num_replicas_in_sync
    batches, hooks = read_per_replica(input_fn, count)
    names = tf_compat.KerasNames(tf.get_default_graph())
    steps: list[Step] = []

    def replica(number: int) -> tuple[()]:
        # Replicas are traced one after the other, up to where they meet.
        if number:
            names.restore()
        features, labels = batches[number]
        if look_up is not None:
            features = look_up(features)
        step = step_of_spec(mode, model_fn(features, labels), [])
        if mode == ModeKeys.EVAL:
            metrics = {name: metric_ops(given) for name, given in step.eval_metric_ops.items()}
            # Made here, it is over all replicas.
            mean_loss = tf.metrics.mean(step.loss)
            step = dataclasses.replace(step, eval_metric_ops=metrics, mean_loss=mean_loss)
        steps.append(step)
        return ()

    tf_compat.call_for_each_replica(strategy, replica, [(number,) for number in range(count)])
    first = steps[0]
    loss = tf.add_n([tf.convert_to_tensor(step.loss) for step in steps])
    if tf_compat.is_loss_scaled(tf.get_default_graph()):
        loss /= count
    together = dataclasses.replace(first, loss=loss, input_hooks=tuple(hooks))
    if mode == ModeKeys.TRAIN:
        return dataclasses.replace(together, train_op=_all([step.train_op for step in steps]))
    metrics = {
        name: (value, _all([step.eval_metric_ops[name][1] for step in steps]))
        for name, (value, _) in first.eval_metric_ops.items()
    }
    assert first.mean_loss is not None
    updates = [step.mean_loss[1] for step in steps if step.mean_loss is not None]
    return dataclasses.replace(
        together, eval_metric_ops=metrics, mean_loss=(first.mean_loss[0], _all(updates))
    )


def _all(ops: list[Any]) -> Any:
    strategy = tf.distribute.get_strategy()
    return tf.group(*[own for op in ops for own in strategy.experimental_local_results(op)])
