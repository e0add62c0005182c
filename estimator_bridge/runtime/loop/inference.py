"""Evaluates and predicts: sessions around a step that starts from a checkpoint."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.runtime.loop.evaluation_events import write_metrics
from estimator_bridge.runtime.program_types import Hook, RunContext, RunValues
from estimator_bridge.runtime.saving.job_saver import add_job_saver
from estimator_bridge.runtime.step.graphs import default_session_config, new_graph
from estimator_bridge.runtime.step.model_step import ModelStep, metric_ops
from tf2_engine.types import Nest, Object, Op, Strategy

LOSS = "loss"
"""The name of the mean loss among the metrics of an evaluation."""


class StopAfterHook(tf.train.SessionRunHook):
    """Stops an evaluation after a number of steps."""

    def __init__(self, steps: int) -> None:
        self._remaining = steps

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Counts the step, and stops if it was the last."""
        self._remaining -= 1
        if self._remaining <= 0:
            run_context.request_stop()


class AllStepsHook(tf.train.SessionRunHook):
    """Makes all steps of an evaluation but the last, which is that of the session call itself.

    It must be the last hook: the others are called once then, as where a TPU makes all steps.
    """

    def __init__(self, steps: int, update: Op) -> None:
        self._steps, self._update = steps, update

    def before_run(self, run_context: RunContext) -> None:
        """Makes the steps."""
        for _ in range(self._steps - 1):
            run_context.session.run(self._update)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Stops the evaluation."""
        run_context.request_stop()


def evaluate(
    build: Callable[[], ModelStep],
    config: RunConfig,
    steps: int | None,
    hooks: Sequence[Hook],
    checkpoint_path: str | None,
    output_dir: str,
    strategy: Strategy | None = None,
    *,
    in_one_call: bool = False,
) -> dict[str, Object]:
    """Evaluates a checkpoint, or freshly initialised variables if there is none.

    Args:
        in_one_call: whether hooks see all `steps` as one.

    Returns:
        The value of each metric, the mean loss under "loss" and the step under "global_step".

    Raises:
        InvalidInput: a metric has one of these two names.
    """
    with new_graph(config.tf_random_seed, strategy=strategy):
        step = build()
        metrics = {name: metric_ops(metric) for name, metric in step.eval_metric_ops.items()}
        _check_names(metrics)
        metrics[LOSS] = step.mean_loss or tf.metrics.mean(step.loss)
        update = tf.group(*[update for _, update in metrics.values()])
        values = {name: value for name, (value, _) in metrics.items()}
        values[tf.GraphKeys.GLOBAL_STEP] = tf.train.get_global_step()
        final = tf.train.FinalOpsHook(values)
        stop: list[Hook] = []
        if steps is not None:
            stop = [AllStepsHook(steps, update) if in_one_call else StopAfterHook(steps)]
        tf.logging.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
        with _checkpoint_session(
            _with_metrics_initialized(step),
            config,
            [*step.input_hooks, *hooks, *step.hooks, final, *stop],
            checkpoint_path,
            config.evaluation_master,
            strategy,
        ) as session:
            while not session.should_stop():
                session.run(update)
        results = final.final_ops_values
        tf.logging.info("Finished evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
        write_metrics(output_dir, results, checkpoint_path)
        return dict(results)


def predict(
    build: Callable[[], ModelStep],
    config: RunConfig,
    predict_keys: Sequence[str] | None,
    hooks: Sequence[Hook],
    checkpoint_path: str | None,
    yield_single_examples: bool,
) -> Iterator[Nest]:
    """Yields predictions until the input ends, one sample or one batch at a time."""
    with new_graph(config.tf_random_seed):
        step = build()
        fetches = _select(step.predictions, predict_keys)
        all_hooks = [*step.input_hooks, *hooks, *step.hooks]
        with _checkpoint_session(
            step, config, all_hooks, checkpoint_path, config.master
        ) as session:
            while not session.should_stop():
                batch = session.run(fetches)
                if not yield_single_examples:
                    yield batch
                elif isinstance(batch, Mapping):
                    for i in range(_length(batch)):
                        yield {key: value[i] for key, value in batch.items()}
                else:
                    yield from batch


def _checkpoint_session(
    step: ModelStep,
    config: RunConfig,
    hooks: Sequence[Hook],
    checkpoint_path: str | None,
    master: str,
    strategy: Strategy | None = None,
) -> tf.train.MonitoredSession:
    add_job_saver(step.scaffold, config, step, checkpoint_path)
    creator = tf.train.ChiefSessionCreator(
        checkpoint_filename_with_path=checkpoint_path,
        master=master,
        scaffold=step.scaffold,
        config=config.session_config or default_session_config(strategy),
    )
    return tf.train.MonitoredSession(session_creator=creator, hooks=list(hooks))


def _check_names(metrics: Mapping[str, Object]) -> None:
    for name in (LOSS, tf.GraphKeys.GLOBAL_STEP):
        if name in metrics:
            raise errors.InvalidInput(
                f"The metric {name!r} needs another name: every evaluation has one of that name."
            )


def _with_metrics_initialized(step: ModelStep) -> ModelStep:
    """Adds the variables of metrics to those that a scaffold's own local_init_op initialises."""
    own_init_op = step.scaffold and step.scaffold.local_init_op
    if own_init_op is None:
        return step
    both = tf.group(own_init_op, tf.train.Scaffold.default_local_init_op())
    scaffold = tf.train.Scaffold(local_init_op=both, copy_from_scaffold=step.scaffold)
    return dataclasses.replace(step, scaffold=scaffold)


def _select(predictions: Nest, keys: Sequence[str] | None) -> Nest:
    if not keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise errors.InvalidInput(
            f"predict_keys={list(keys)} needs predictions to be a dict, got {predictions!r}."
        )
    chosen = {key: value for key, value in predictions.items() if key in keys}
    if not chosen:
        raise errors.InvalidInput(
            f"predict_keys={list(keys)}: expected some of {sorted(predictions)}."
        )
    return chosen


def _length(batch: Mapping[str, Nest]) -> int:
    lengths = {key: np.shape(value)[0] if np.ndim(value) else None for key, value in batch.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise errors.InvalidInput(
            f"The predictions of a batch have different lengths: {lengths}. Use "
            "yield_single_examples=False to get whole batches."
        )
    return int(next(iter(lengths.values())) or 0)
