"""Hooks that end training because of the results of evaluations."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from tf2_engine import errors
from tf2_engine.pacing import Pace
from tf2_engine.summaries.evaluations import Comparison, Evaluations
from tf2_engine.types import Object


class StopWhen:
    """Ends the training of a trainer once a function returns True.

    Args:
        seconds, steps: the interval between calls of the function. One of them must be None.
    """

    def __init__(
        self,
        trainer: Object,
        should_stop: Callable[[], bool],
        seconds: float | None,
        steps: int | None,
    ) -> None:
        self._trainer, self._should_stop = trainer, should_stop
        self._pace = Pace(seconds, steps)

    def on_train_batch_end(self, step: int) -> None:
        if self._pace.is_due(step) and self._should_stop():
            self._trainer.stop_training = True


def make_early_stopping_hook(
    estimator: Object,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> StopWhen:
    """Creates a callback that ends the training of a `Trainer` once a function returns True.

    Args:
        run_every_secs, run_every_steps: the interval between calls. One must be None.

    Raises:
        InvalidInput: both intervals are given, or both are None.
    """
    if (run_every_secs is None) == (run_every_steps is None):
        raise errors.InvalidInput(
            "Give one of `run_every_secs` and `run_every_steps`, and None for the other; got "
            f"{run_every_secs} and {run_every_steps}."
        )
    return StopWhen(estimator, should_stop_fn, run_every_secs, run_every_steps)


def _crossed_hook(beyond: Comparison) -> Callable[..., StopWhen]:
    def make(
        estimator: Object,
        metric_name: str,
        threshold: float,
        eval_dir: str | None = None,
        min_steps: int = 0,
        run_every_secs: float | None = 60,
        run_every_steps: int | None = None,
    ) -> StopWhen:
        seen = Evaluations(eval_dir or estimator.eval_dir(), metric_name, min_steps)
        should_stop = functools.partial(seen.crossed, threshold, beyond)
        return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)

    return make


def stop_if_no_increase_hook(
    estimator: Object,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> StopWhen:
    """Creates a callback that ends training once a metric has not increased for some steps."""
    seen = Evaluations(eval_dir or estimator.eval_dir(), metric_name, min_steps)
    should_stop = functools.partial(seen.stuck, max_steps_without_increase, operator.gt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Object,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> StopWhen:
    """Creates a callback that ends training once a metric has not decreased for some steps."""
    seen = Evaluations(eval_dir or estimator.eval_dir(), metric_name, min_steps)
    should_stop = functools.partial(seen.stuck, max_steps_without_decrease, operator.lt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


stop_if_higher_hook = _crossed_hook(operator.gt)
"""Creates a callback that ends training once a metric of an evaluation is above `threshold`.

`eval_dir` is the folder of the evaluations' event files, by default `estimator.eval_dir()`.
Evaluations before `min_steps` are ignored. `run_every_secs` and `run_every_steps` have the same
meaning as in `make_early_stopping_hook`.
"""

stop_if_lower_hook = _crossed_hook(operator.lt)
"""Like `stop_if_higher_hook`, for a metric below a threshold."""
