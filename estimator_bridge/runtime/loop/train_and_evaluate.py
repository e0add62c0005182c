"""`train_and_evaluate` with its `TrainSpec` and `EvalSpec`: trains, evaluates and exports."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy import requirements
from estimator_bridge.legacy.estimator_spec import Hooks, checked_all, checked_hooks
from estimator_bridge.legacy.exporters import Exporter, FinalExporter
from estimator_bridge.legacy.tf_config import TaskType
from estimator_bridge.runtime.program_types import Hook, InputFn
from estimator_bridge.settings import render
from estimator_bridge.settings.row import EXPORT
from tf2_engine import log
from tf2_engine.types import Object, Session

_sleep = time.sleep
_DELAY_SECS, _LONGEST_DELAY_SECS = 5, 60  # as in stock

_Metrics = dict[str, Object]
_Results = tuple[_Metrics | None, list[Object] | None]  # metrics, and the results of the exporters

_HOOKS = "All hooks must be `SessionRunHook` instances"
_LISTENERS = "`TrainSpec`: All saving_listeners must be `CheckpointSaverListener` instances"
_ABOVE_ZERO = requirements.POSITIVE._replace(text="Must specify {name} > 0")
_AT_LEAST_ZERO = requirements.NOT_NEGATIVE._replace(text="Must specify {name} >= 0")
_TRAIN = {"input_fn": requirements.CALLABLE, "max_steps": requirements.optional(_ABOVE_ZERO)}
_EVALUATION = {
    "input_fn": requirements.CALLABLE,
    "steps": requirements.optional(_ABOVE_ZERO),
    "name": requirements.optional(requirements.STRING),
    "start_delay_secs": _AT_LEAST_ZERO,
    "throttle_secs": _AT_LEAST_ZERO,
}


@requirements.checked
class TrainSpec(NamedTuple):
    """How `train_and_evaluate` trains.

    Attributes:
        input_fn, hooks, saving_listeners: as for `train`.
        max_steps: the global step to stop at; if None, training ends when the input ends.

    Raises:
        InvalidSpec: `max_steps` is not positive.
        WrongType: `input_fn` is not callable, or a hook or listener has the wrong type.
    """

    input_fn: InputFn
    max_steps: int | None = None
    hooks: Hooks = None
    saving_listeners: Hooks = None

    def _checked(self) -> TrainSpec:
        requirements.check_settings("TrainSpec", self._asdict(), _TRAIN)
        listeners = checked_all(self.saving_listeners, tf.train.CheckpointSaverListener, _LISTENERS)
        return self._replace(hooks=checked_hooks(self.hooks, _HOOKS), saving_listeners=listeners)


@requirements.checked
class EvalSpec(NamedTuple):
    """How `train_and_evaluate` evaluates.

    Attributes:
        input_fn, steps, name, hooks: as for `evaluate`.
        exporters: called after each evaluation, in this order.
        start_delay_secs: seconds before an evaluator process begins to evaluate; unused in other
            processes.
        throttle_secs: the minimum number of seconds between the starts of two evaluations. The
            last checkpoint is always evaluated.

    Raises:
        InvalidSpec: a number is out of range, an exporter has no name, or two have the same name.
        WrongType: `input_fn` is not callable, or a hook, an exporter or a name has the wrong type.
    """

    input_fn: InputFn
    steps: int | None = 100
    name: str | None = None
    hooks: Hooks = None
    exporters: Object = None  # one or several; a tuple once checked
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def _checked(self) -> EvalSpec:
        requirements.check_settings("EvalSpec", self._asdict(), _EVALUATION)
        exporters = _checked_exporters(self.exporters)
        return self._replace(hooks=checked_hooks(self.hooks, _HOOKS), exporters=exporters)


def _is_exporter(thing: Object) -> bool:
    return hasattr(thing, "name") and callable(getattr(thing, "export", None))


def _checked_exporters(exporters: Object) -> tuple[Exporter, ...]:
    if not exporters:
        return ()
    alone = _is_exporter(exporters) or not isinstance(exporters, Iterable)
    checked: tuple[Object, ...] = (exporters,) if alone else tuple(exporters)
    if not all(map(_is_exporter, checked)):
        raise errors.WrongType(
            f"`EvalSpec`: `exporters` must be an Exporter or several Exporters, got {exporters!r}."
        )
    names = [exporter.name for exporter in checked]
    if not all(names):
        raise errors.InvalidSpec(
            f"`EvalSpec`: An Exporter cannot have a name that is `None` or empty, got {names}."
        )
    if not all(isinstance(name, str) for name in names):
        raise errors.InvalidSpec(f"`EvalSpec`: An Exporter must have a string name, got {names}.")
    if len(set(names)) < len(names):
        raise errors.InvalidSpec(
            "`EvalSpec`: `exporters` must have unique names, which are also the names of their "
            f"directories; got {names}."
        )
    return checked


def train_and_evaluate(
    estimator: Object, train_spec: TrainSpec, eval_spec: EvalSpec
) -> _Results | None:
    """Trains an estimator and evaluates the checkpoints that the training writes.

    In a cluster that TF_CONFIG describes, a chief only trains, and an evaluator only evaluates.

    Returns:
        The metrics of the last evaluation and the results of its exporters; (None, None) if there
        was no evaluation. In a cluster, every task but a "master" returns None.

    Raises:
        WrongType: an argument has the wrong type.
        InvalidInput: the estimator is stock's, and the job has parameter servers or several
            workers.
        NoNewCheckpoint: an evaluation was due, but no checkpoint was written.
    """
    return _TrainingExecutor(estimator, train_spec, eval_spec).run()


class _EvalStatus:
    EVALUATED = "evaluated"
    MISSING_CHECKPOINT = "missing checkpoint"
    NO_NEW_CHECKPOINT = "no new checkpoint"


class _EvalResult(NamedTuple):
    status: str
    metrics: _Metrics | None = None
    checkpoint_path: str | None = None


class _ContinuousEvalListener:
    """Called around the evaluations of an evaluator, which ends when a method returns False."""

    def before_eval(self) -> bool:
        return True

    def after_eval(self, eval_result: _EvalResult) -> bool:
        return True


class _TrainingExecutor:
    """Runs `train_and_evaluate`. Libraries also create this class, to add hooks and a listener."""

    def __init__(
        self,
        estimator: Object,
        train_spec: TrainSpec,
        eval_spec: EvalSpec,
        train_hooks: Sequence[Hook] | None = None,
        continuous_eval_listener: _ContinuousEvalListener | None = None,
    ) -> None:
        requirements.check_estimator("train_and_evaluate", estimator)
        if not isinstance(train_spec, tuple) or not hasattr(train_spec, "saving_listeners"):
            raise errors.WrongType(
                f"`train_spec` must have type `tf.estimator.TrainSpec`, got {train_spec!r}."
            )
        if eval_spec:
            _assert_eval_spec(eval_spec)
        listener = continuous_eval_listener or _ContinuousEvalListener()
        if not isinstance(listener, _ContinuousEvalListener):
            raise errors.WrongType(
                "`continuous_eval_listener` must have type `_ContinuousEvalListener`, got "
                f"{listener!r}."
            )
        self._estimator, self._listener = estimator, listener
        self._train_spec, self._eval_spec = train_spec, eval_spec
        self._train_hooks = [*(train_hooks or ())]

    @property
    def estimator(self) -> Object:
        return self._estimator

    def run(self) -> _Results | None:
        _assert_eval_spec(self._eval_spec)
        estimator, train_spec, config = self._estimator, self._train_spec, self._estimator.config
        in_cluster = config.num_ps_replicas > 0 or config.num_worker_replicas > 1
        if in_cluster and not hasattr(estimator, "_serve_if_told"):
            raise errors.InvalidInput(
                f"`train_and_evaluate`: the cluster has {config.num_ps_replicas} parameter servers "
                f"and {config.num_worker_replicas} workers, but with stock's estimator one process "
                "does all the work. Run without TF_CONFIG."
            )
        evaluator = _Evaluator(estimator, self._eval_spec, train_spec.max_steps)
        if config.task_type == TaskType.EVALUATOR:
            evaluator.evaluate_while_others_train(self._listener)
            return None
        listener = _EvaluationListener(evaluator, self._eval_spec.throttle_secs)
        evaluates = not config.cluster_spec or config.task_type == TaskType.MASTER
        listeners = [*train_spec.saving_listeners, *([listener] if evaluates else [])]
        if in_cluster and config.task_type == TaskType.WORKER:
            listeners = []  # workers save nothing
            estimator._wait_for_turn(start_delay(config))
        estimator.train(
            input_fn=train_spec.input_fn,
            max_steps=train_spec.max_steps,
            hooks=[*train_spec.hooks, *self._train_hooks],
            saving_listeners=listeners,
        )
        return listener.results if evaluates else None


def _assert_eval_spec(eval_spec: Object) -> None:
    if not isinstance(eval_spec, tuple) or not hasattr(eval_spec, "throttle_secs"):
        raise errors.WrongType(
            f"`eval_spec` must have type `tf.estimator.EvalSpec`, got {eval_spec!r}."
        )


def start_delay(config: Object) -> float:
    """Returns how many seconds a worker waits before it trains: 5 * (task_id + 1).

    The upper limit is the config's `experimental_max_worker_delay_secs`, or else 60.
    """
    longest = config.experimental_max_worker_delay_secs
    longest = _LONGEST_DELAY_SECS if longest is None else int(longest)
    return float(max(0, min(longest, _DELAY_SECS * (config.task_id + 1))))


class _EvaluationListener(tf.train.CheckpointSaverListener):
    def __init__(self, evaluator: _Evaluator, throttle_secs: float) -> None:
        self._evaluator, self._throttle_secs = evaluator, throttle_secs
        self._has_cut_off = False
        self.results: _Results = (None, None)

    def begin(self) -> None:
        self._timer = tf.train.SecondOrStepTimer(every_secs=self._throttle_secs)
        self._is_first = True

    def after_save(self, session: Session, global_step_value: int) -> None:
        if self._is_first:
            self._is_first = False
        elif self._timer.should_trigger_for_step(global_step_value):
            self._evaluate(global_step_value)
        else:
            log.info(
                "The checkpoint of step %d is not evaluated, because throttle_secs=%s seconds have "
                "not passed since the last evaluation.",
                *(global_step_value, self._throttle_secs),
            )

    def end(self, session: Session, global_step_value: int) -> None:
        if global_step_value != self._timer.last_triggered_step():
            self._evaluate(global_step_value)
        if not self._has_cut_off:
            self._evaluator.warn_of_final_exports(global_step_value)

    def _evaluate(self, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        try:
            results = self._evaluator.evaluate_and_export()
        except tf.errors.OutOfRangeError:
            self._has_cut_off = True
            log.warning(
                "The evaluation of step %d raises an OutOfRangeError. As in stock, training treats "
                "this error as the end of its own input, and ends at this step. The error comes "
                "from a hook that reads after the end of the evaluation's input, such as "
                "LoggingTensorHook with at_end=True. Leave at_end out of the hooks of the "
                "EvalSpec.",
                step,
            )
            raise
        if results is None:
            raise errors.NoNewCheckpoint(
                f"Step {step} cannot be evaluated, because no checkpoint was written since the "
                "last evaluation."
            )
        self.results = results


class _Evaluator:
    def __init__(self, estimator: Object, eval_spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator, self._spec, self._max_steps = estimator, eval_spec, max_steps
        self._evaluated: str | None = None

    def evaluate_and_export(self) -> tuple[_Metrics, list[Object]] | None:
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
        exports = [
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint_path=path,
                eval_result=metrics,
                is_the_final_export=self._is_last(metrics[tf.GraphKeys.GLOBAL_STEP]),
            )
            for exporter in self._spec.exporters
        ]
        return metrics, exports

    def evaluate_while_others_train(self, listener: _ContinuousEvalListener) -> None:
        _sleep(self._spec.start_delay_secs)
        while listener.before_eval():
            start = time.monotonic()
            results = self.evaluate_and_export()
            if not listener.after_eval(self._result_for_listeners(results)):
                return
            if results is not None and self._is_last(results[0][tf.GraphKeys.GLOBAL_STEP]):
                return
            if results is None:
                directory = self._estimator.model_dir
                log.info("There is no new checkpoint in %s to evaluate.", directory)
            # With throttle_secs=0 the directory would be listed again and again without a pause.
            wait = self._spec.throttle_secs - (time.monotonic() - start)
            _sleep(max(wait, 1.0 if results is None else 0.0))

    def warn_of_final_exports(self, last_step: int) -> None:
        if self._is_last(last_step):
            return
        for exporter in self._spec.exporters:
            if isinstance(exporter, FinalExporter):
                line = render.warning(
                    *("final_exporter", EXPORT),
                    where=f"Exporter {exporter.name!r}: ",
                    value=last_step,
                    max_steps=self._max_steps,
                )
                log.warning("%s", line)

    def _result_for_listeners(self, results: tuple[_Metrics, list[Object]] | None) -> _EvalResult:
        if results is not None:
            return _EvalResult(_EvalStatus.EVALUATED, results[0], self._evaluated)
        if self._evaluated is None:
            return _EvalResult(_EvalStatus.MISSING_CHECKPOINT)
        return _EvalResult(_EvalStatus.NO_NEW_CHECKPOINT)

    def _is_last(self, step: Object) -> bool:
        return self._max_steps is not None and bool(step >= self._max_steps)
