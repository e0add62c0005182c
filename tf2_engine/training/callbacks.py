"""Callbacks of a `Trainer`: early stopping, table statistics, and `train_and_evaluate`."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.pacing import Pace
from tf2_engine.summaries.events import Comparison, Evaluations
from tf2_engine.summaries.statistics import TableSummaries
from tf2_engine.training.trainer import Trainer
from tf2_engine.training.trainer_specs import EvalSpec, TrainSpec
from tf2_engine.types import Object


class StopWhen:
    """Ends a trainer's training once a function, which is called at intervals, returns True."""

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
        run_every_secs, run_every_steps: the interval between calls, in seconds or steps. Set the
            other argument to None.
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
"""Like `stop_if_higher_hook`, but for a metric below the threshold."""


class TableSummaryHook(TableSummaries):
    """Writes statistics of tables to the model's event files; see docs/tensorboard.md.

        trainer.train(input_fn, hooks=[training.TableSummaryHook()], max_steps=10_000)

    With this hook, `train` traces the step again.

    Args:
        output_dir: the folder of the event files; by default the trainer's `model_dir`.
        every_n_steps: the interval in steps, starting with the first step.
        projector_rows: the number of rows of each table to write for the embedding projector when
            training ends; by default 0.
        labels: maps a table's name to the names of its rows in the projector.

    Raises:
        OutOfOrder: the trainer runs under a TPUStrategy.
    """

    def observe(self, engine: TPUEmbedding, model_dir: str) -> None:
        self.watch([engine], model_dir)

    def on_train_batch_end(self, step: int) -> None:
        self.count(step)

    def on_train_end(self) -> None:
        self.close()


Results = dict[str, Object]


def train_and_evaluate(
    estimator: Trainer, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[Results, list[Object]]:
    """Trains a model, and evaluates and exports every new checkpoint.

    Returns:
        The metrics of the last checkpoint, and the result of each exporter for this checkpoint.
    """
    evaluator = _Evaluator(estimator, eval_spec)
    estimator.train(
        train_spec.input_fn,
        train_spec.hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=[evaluator, *(train_spec.saving_listeners or ())],
    )
    return evaluator.finish()


class _Evaluator(tf.compat.v1.train.CheckpointSaverListener):
    def __init__(self, trainer: Trainer, spec: EvalSpec) -> None:
        self._trainer, self._spec = trainer, spec
        self._results: Results | None = None

    def after_save(self, session: None, step: int) -> None:
        spec = self._spec
        self._results = self._trainer.evaluate(
            spec.input_fn, spec.steps, spec.hooks, name=spec.name
        )
        self._export(is_last=False)

    def finish(self) -> tuple[Results, list[Object]]:
        if self._results is None:
            self.after_save(None, int(self._trainer.step.numpy()))
        assert self._results is not None
        return self._results, self._export(is_last=True)

    def _export(self, *, is_last: bool) -> list[Object]:
        exporters = self._spec.exporters or ()
        if not isinstance(exporters, Sequence):
            exporters = (exporters,)
        base = os.path.join(tf.compat.as_str_any(self._trainer.model_dir), "export")
        checkpoint = self._trainer.latest_checkpoint()
        return [
            each.export(
                self._trainer, os.path.join(base, each.name), checkpoint, self._results, is_last
            )
            for each in exporters
        ]
