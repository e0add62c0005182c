"""Hooks that stop training, depending on evaluation results or at a checkpoint."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import check_estimator
from estimator_bridge.runtime.loop.session_hooks import StepHook
from tf2_engine.summaries.events import Evaluations
from tf2_engine.types import Object, Variable


def make_early_stopping_hook(
    estimator: Object,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Makes a hook that stops training once a function returns True.

    Args:
        run_every_secs, run_every_steps: how often to call `should_stop_fn`; one of the two must be
            None.

    Raises:
        WrongType: `estimator` is not an estimator, or `should_stop_fn` cannot be called.
        InvalidInput: both intervals are given, or neither is.
    """
    check_estimator("make_early_stopping_hook", estimator)
    if not callable(should_stop_fn):
        raise errors.WrongType(f"`should_stop_fn` must be callable, got {should_stop_fn!r}.")
    if (run_every_secs is None) == (run_every_steps is None):
        raise errors.InvalidInput(
            "Give one of `run_every_secs` and `run_every_steps`, and None for the other; got "
            f"{run_every_secs} and {run_every_steps}."
        )
    if not estimator.config.is_chief:
        return _StopWithChiefHook()
    return _StopWhenHook(should_stop_fn, run_every_secs, run_every_steps)


def stop_if_higher_hook(
    estimator: Object,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Makes a hook that stops training once a metric of an evaluation is above a threshold.

    Args:
        eval_dir: the directory of the evaluations' event files; None means `estimator.eval_dir()`.
        min_steps: evaluations of earlier steps are ignored.
        run_every_secs, run_every_steps: see `make_early_stopping_hook`.

    Raises:
        WrongType, InvalidInput: see `make_early_stopping_hook`.
        MissingMetric: an evaluation lacks the metric (raised during training).
    """
    evaluations = _evaluations(estimator, metric_name, eval_dir, min_steps)
    should_stop = functools.partial(evaluations.crossed, threshold, operator.gt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Object,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Makes a hook that stops once a metric is below a threshold; see `stop_if_higher_hook`."""
    evaluations = _evaluations(estimator, metric_name, eval_dir, min_steps)
    should_stop = functools.partial(evaluations.crossed, threshold, operator.lt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Object,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Makes a hook that stops training once a metric has not increased for a number of steps."""
    evaluations = _evaluations(estimator, metric_name, eval_dir, min_steps)
    should_stop = functools.partial(evaluations.stuck, max_steps_without_increase, operator.gt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Object,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Makes a hook that stops training once a metric has not decreased for a number of steps."""
    evaluations = _evaluations(estimator, metric_name, eval_dir, min_steps)
    should_stop = functools.partial(evaluations.stuck, max_steps_without_decrease, operator.lt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def _evaluations(
    estimator: Object, metric: str, eval_dir: str | None, min_steps: int
) -> Evaluations:
    check_estimator("early stopping", estimator)
    directory = estimator.eval_dir() if eval_dir is None else eval_dir
    return Evaluations(directory, metric, min_steps)


def _stop_variable() -> Variable:
    # In checkpoints, the variable has the same name as in stock's checkpoints.
    with tf.variable_scope("signal_early_stopping", reuse=tf.AUTO_REUSE):
        initializer = tf.constant_initializer(False)
        return tf.get_variable("STOP", [], tf.bool, initializer, trainable=False)


class _StopWhenHook(StepHook):
    def __init__(
        self, should_stop_fn: Callable[[], bool], secs: float | None, steps: int | None
    ) -> None:
        self._should_stop_fn = should_stop_fn
        self._timer = tf.train.SecondOrStepTimer(every_secs=secs, every_steps=steps)

    def begin(self) -> None:
        super().begin()
        self._stop = tf.assign(_stop_variable(), True)

    def after_run(self, run_context: Object, run_values: Object) -> None:
        step = self.step_if_due(self._timer, run_context, run_values)
        if step is None:
            return
        self._timer.update_last_triggered_step(step)
        if self._should_stop_fn():
            run_context.session.run(self._stop)
            run_context.request_stop()


class _StopWithChiefHook(StepHook):
    def begin(self) -> None:
        self.fetched = _stop_variable()

    def after_run(self, run_context: Object, run_values: Object) -> None:
        if run_values.results:
            run_context.request_stop()


def make_stop_at_checkpoint_step_hook(
    estimator: Object, last_step: int, wait_after_file_check_secs: float = 30
) -> tf.train.SessionRunHook:
    """Makes a hook that stops the chief at `last_step`, and workers at that step's checkpoint.

    A worker looks for this checkpoint every `wait_after_file_check_secs` seconds.

    Raises:
        InvalidInput: `last_step` is None.
    """
    if last_step is None:
        raise errors.InvalidInput("`last_step` must be given, got None.")
    if estimator.config.is_chief:
        return tf.train.StopAtStepHook(last_step=last_step)
    return _StopAtCheckpointHook(estimator.model_dir, last_step, wait_after_file_check_secs)


class _StopAtCheckpointHook(StepHook):
    def __init__(self, model_dir: str, last_step: int, wait_secs: float) -> None:
        self._model_dir, self._last_step, self._wait_secs = model_dir, last_step, wait_secs

    def after_run(self, run_context: Object, run_values: Object) -> None:
        # The step may have been read before this run increased it.
        if run_values.results + 1 < self._last_step:
            return
        path = tf.train.latest_checkpoint(self._model_dir)
        saved = tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP) if path else 0
        if saved >= self._last_step:
            run_context.request_stop()
        else:
            time.sleep(self._wait_secs)
