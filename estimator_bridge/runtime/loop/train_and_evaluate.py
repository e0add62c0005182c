"""`train_and_evaluate`: trains, and evaluates and exports checkpoints on the way."""

from __future__ import annotations

import os
import time

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.checks import check_estimator
from estimator_bridge.legacy.cluster import TaskType
from estimator_bridge.legacy.train_and_eval_specs import (
    EvalSpec,
    TrainSpec,
    is_eval_spec,
    is_train_spec,
)
from tf2_engine.types import Object, Session

_sleep = time.sleep

Metrics = dict[str, Object]
Results = tuple[Metrics | None, list[Object] | None]
"""The metrics of an evaluation, and the results of its exporters."""


def train_and_evaluate(
    estimator: Object, train_spec: TrainSpec, eval_spec: EvalSpec
) -> Results | None:
    """Trains an estimator; evaluates after checkpoints, and always after the last one.

    The first checkpoint of a run, from which training starts, is not evaluated. In a cluster of
    TF_CONFIG a chief only trains, and an evaluator only evaluates the checkpoints that it finds.

    Args:
        estimator: stock's or ours; the specs likewise.

    Returns:
        The metrics of the last evaluation and the results of its exporters, None and None if there
        was none; in a cluster, None.

    Raises:
        WrongType: an argument is of another type.
        InvalidInput: the job has parameter servers or several workers.
        NoNewCheckpoint: a checkpoint was due to be evaluated, but none was written.
    """
    if not is_eval_spec(eval_spec):
        raise errors.WrongType(f"`eval_spec` must be an EvalSpec, got {eval_spec!r}.")
    check_estimator("train_and_evaluate", estimator)
    if not is_train_spec(train_spec):
        raise errors.WrongType(f"`train_spec` must be a TrainSpec, got {train_spec!r}.")
    config = estimator.config
    if config.num_ps_replicas > 0 or config.num_worker_replicas > 1:
        raise errors.InvalidInput(
            f"`train_and_evaluate`: the cluster has {config.num_ps_replicas} parameter servers "
            f"and {config.num_worker_replicas} workers, but one process does all the work here. "
            "Run without TF_CONFIG."
        )
    task = config.task_type if config.cluster_spec else None
    if config.task_type == TaskType.EVALUATOR:
        _evaluate_while_others_train(estimator, train_spec, eval_spec)
    elif task == TaskType.CHIEF:
        _train(estimator, train_spec, train_spec.saving_listeners)
    else:
        results = _train_and_evaluate_here(estimator, train_spec, eval_spec)
        return results if task is None else None
    return None


class EvaluationListener(tf.train.CheckpointSaverListener):
    """Evaluates checkpoints as they are written, but at most once in `throttle_secs`.

    Attributes:
        results: metrics and exports of the last evaluation.
    """

    def __init__(self, evaluator: Evaluator, throttle_secs: float) -> None:
        self._evaluator = evaluator
        self._throttle_secs = throttle_secs
        self._timer: tf.train.SecondOrStepTimer = None
        self._is_first = True
        self.results: Results = (None, None)

    def begin(self) -> None:
        """Starts the clock of a run."""
        self._timer = tf.train.SecondOrStepTimer(every_secs=self._throttle_secs)
        self._is_first = True

    def after_save(self, session: Session, global_step_value: int) -> None:
        """Evaluates, unless it is too soon or training started from this checkpoint."""
        if self._is_first:
            self._is_first = False
        elif self._timer.should_trigger_for_step(global_step_value):
            self._evaluate(global_step_value)
        else:
            tf.logging.info(
                "The checkpoint of step %d is not evaluated: throttle_secs=%s have not passed.",
                *(global_step_value, self._throttle_secs),
            )

    def end(self, session: Session, global_step_value: int) -> None:
        """Evaluates the last checkpoint unless it has been evaluated."""
        if global_step_value != self._timer.last_triggered_step():
            self._evaluate(global_step_value)

    def _evaluate(self, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        results = self._evaluator.evaluate_and_export()
        if results is None:
            raise errors.NoNewCheckpoint(
                f"Step {step} was to be evaluated, but no checkpoint was written since the last "
                "evaluation."
            )
        self.results = results


class Evaluator:
    """Evaluates the latest checkpoint, and lets exporters export it.

    Args:
        max_steps: the step at which training is over; None if that is not known.
    """

    def __init__(self, estimator: Object, eval_spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator = estimator
        self._spec = eval_spec
        self._max_steps = max_steps
        self._evaluated: str | None = None

    def evaluate_and_export(self) -> tuple[Metrics, list[Object]] | None:
        """Returns the metrics and the exporters' results; None if there is no new checkpoint."""
        path = self._estimator.latest_checkpoint()
        if path is None or path == self._evaluated:
            return None
        metrics = self._estimator.evaluate(
            input_fn=self._spec.input_fn,
            steps=self._spec.steps,
            name=self._spec.name,
            checkpoint_path=path,
            hooks=list(self._spec.hooks),
        )
        self._evaluated = path
        is_final = self.is_final(metrics)
        exports = [
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint_path=path,
                eval_result=metrics,
                is_the_final_export=is_final,
            )
            for exporter in self._spec.exporters
        ]
        return metrics, exports

    def is_final(self, metrics: Metrics) -> bool:
        """Returns whether training is over at the step of an evaluation."""
        step = metrics[tf.GraphKeys.GLOBAL_STEP]
        return self._max_steps is not None and bool(step >= self._max_steps)


def _train_and_evaluate_here(
    estimator: Object, train_spec: TrainSpec, eval_spec: EvalSpec
) -> Results:
    evaluator = Evaluator(estimator, eval_spec, train_spec.max_steps)
    listener = EvaluationListener(evaluator, eval_spec.throttle_secs)
    _train(estimator, train_spec, (*train_spec.saving_listeners, listener))
    return listener.results


def _train(
    estimator: Object,
    train_spec: TrainSpec,
    listeners: tuple[tf.train.CheckpointSaverListener, ...],
) -> None:
    estimator.train(
        input_fn=train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=list(train_spec.hooks),
        saving_listeners=list(listeners),
    )


def _evaluate_while_others_train(
    estimator: Object, train_spec: TrainSpec, eval_spec: EvalSpec
) -> None:
    """Evaluates each new checkpoint until one has the last step; forever if that is not known."""
    evaluator = Evaluator(estimator, eval_spec, train_spec.max_steps)
    _sleep(eval_spec.start_delay_secs)
    while True:
        start = time.monotonic()
        results = evaluator.evaluate_and_export()
        if results is not None and evaluator.is_final(results[0]):
            return
        if results is None:
            tf.logging.info("There is no new checkpoint in %s to evaluate.", estimator.model_dir)
        # With throttle_secs=0 the directory would be listed without a pause.
        wait = eval_spec.throttle_secs - (time.monotonic() - start)
        _sleep(max(wait, 1.0 if results is None else 0.0))
