"""Hooks that end a training when its evaluations say so."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.checks import check_estimator
from estimator_bridge.legacy.events import scalars_by_step

Better = Callable[[float, float], bool]


def make_early_stopping_hook(
    estimator: Any,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that stops training when a function says so.

    Args:
        should_stop_fn: takes nothing; whether to stop.
        run_every_secs, run_every_steps: how often it is asked; one of them must be None.

    Raises:
        WrongType: `estimator` is none, or the function cannot be called.
        InvalidInput: both intervals are given, or neither.
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
    estimator: Any,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that stops once an evaluation's metric is above a threshold.

    Args:
        eval_dir: where the evaluations' events are; None is `estimator.eval_dir()`.
        min_steps: evaluations of earlier steps do not count.
        run_every_secs, run_every_steps: as for `make_early_stopping_hook`, errors too.
    """
    crossed = _crossed(estimator, metric_name, threshold, eval_dir, min_steps, operator.gt)
    return make_early_stopping_hook(estimator, crossed, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Any,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that stops once a metric is below a threshold; see `stop_if_higher_hook`."""
    crossed = _crossed(estimator, metric_name, threshold, eval_dir, min_steps, operator.lt)
    return make_early_stopping_hook(estimator, crossed, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Any,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that stops when a metric has not grown for a number of steps.

    The other arguments are those of `stop_if_higher_hook`.
    """
    stuck = _stuck(
        estimator, metric_name, max_steps_without_increase, eval_dir, min_steps, operator.gt
    )
    return make_early_stopping_hook(estimator, stuck, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Any,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that stops when a metric has not shrunk for a number of steps.

    The other arguments are those of `stop_if_higher_hook`.
    """
    stuck = _stuck(
        estimator, metric_name, max_steps_without_decrease, eval_dir, min_steps, operator.lt
    )
    return make_early_stopping_hook(estimator, stuck, run_every_secs, run_every_steps)


def _crossed(
    estimator: Any,
    metric: str,
    threshold: float,
    eval_dir: str | None,
    min_steps: int,
    beyond: Better,
) -> Callable[[], bool]:
    values = _values(estimator, metric, eval_dir, min_steps)

    def should_stop() -> bool:
        for step, value in values():
            if beyond(value, threshold):
                tf.logging.info(
                    "Early stopping: %s is %s at step %d, past the threshold of %s.",
                    *(metric, value, step, threshold),
                )
                return True
        return False

    return should_stop


def _stuck(
    estimator: Any,
    metric: str,
    patience: int,
    eval_dir: str | None,
    min_steps: int,
    better: Better,
) -> Callable[[], bool]:
    values = _values(estimator, metric, eval_dir, min_steps)

    def should_stop() -> bool:
        best: tuple[int, float] | None = None
        for step, value in values():
            if best is None or better(value, best[1]):
                best = step, value
            if step - best[0] >= patience:
                tf.logging.info(
                    "Early stopping: %s is %s at step %d, no better than %s at step %d.",
                    *(metric, value, step, best[1], best[0]),
                )
                return True
        return False

    return should_stop


def _values(
    estimator: Any, metric: str, eval_dir: str | None, min_steps: int
) -> Callable[[], list[tuple[int, float]]]:
    """Returns a function that reads step and value of each evaluation so far.

    Raises:
        WrongType: `estimator` is none.
    """
    check_estimator("early stopping", estimator)
    directory = estimator.eval_dir() if eval_dir is None else eval_dir

    def read() -> list[tuple[int, float]]:
        found = []
        for step, scalars in scalars_by_step(directory).items():
            if step < min_steps:
                continue
            if metric not in scalars:
                raise errors.MissingMetric(
                    f"Early stopping: the evaluation of step {step} in {directory!r} has no "
                    f"metric {metric!r}, only {', '.join(sorted(scalars))}."
                )
            found.append((step, scalars[metric]))
        return found

    return read


def _stop_variable() -> Any:
    # Part of checkpoints, under this name, as in stock.
    with tf.variable_scope("signal_early_stopping", reuse=tf.AUTO_REUSE):
        return tf.get_variable(
            "STOP",
            shape=[],
            dtype=tf.bool,
            initializer=tf.constant_initializer(False),
            collections=[tf.GraphKeys.GLOBAL_VARIABLES],
            trainable=False,
        )


class _StopWhenHook(tf.train.SessionRunHook):
    """Stops when a function says so, and tells other workers through a variable."""

    def __init__(
        self, should_stop_fn: Callable[[], bool], secs: float | None, steps: int | None
    ) -> None:
        self._should_stop_fn = should_stop_fn
        self._timer = tf.train.SecondOrStepTimer(every_secs=secs, every_steps=steps)
        self._global_step: Any = None
        self._stop: Any = None

    def begin(self) -> None:
        self._global_step = tf.train.get_global_step()
        self._stop = tf.assign(_stop_variable(), True)

    def before_run(self, run_context: Any) -> Any:
        return tf.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_values.results
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        if self._should_stop_fn():
            run_context.session.run(self._stop)
            run_context.request_stop()


class _StopWithChiefHook(tf.train.SessionRunHook):
    """Stops once the chief has set the variable."""

    def __init__(self) -> None:
        self._variable: Any = None

    def begin(self) -> None:
        self._variable = _stop_variable()

    def before_run(self, run_context: Any) -> Any:
        return tf.train.SessionRunArgs(self._variable)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results:
            run_context.request_stop()
