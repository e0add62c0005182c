"""`ModelStep`: the ops and hooks of one step of a mode, which the loops run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import HostCallHook, ModeKeys
from estimator_bridge.runtime.program_types import Hook, ModelSpec
from estimator_bridge.runtime.step.table_variables import TableVariables
from tf2_engine.types import Nest, Object, Op, Session, Tensor

MetricOps = tuple[Nest, Op]
"""The value of a metric, and the op that updates it."""

_MODE_HOOKS = {
    ModeKeys.TRAIN: "training_hooks",
    ModeKeys.EVAL: "evaluation_hooks",
    ModeKeys.PREDICT: "prediction_hooks",
}
_NEEDED_FIELDS = {
    ModeKeys.TRAIN: ("loss", "train_op"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


@dataclasses.dataclass(frozen=True)
class ModelStep:
    """One step of training, evaluation or prediction.

    Attributes:
        loss: scalar; None for prediction.
        train_op: training only.
        predictions: a tensor or a dict of tensors; prediction only.
        eval_metric_ops: for each metric (value, update op), or a Keras metric; evaluation only.
        mean_loss: the metric of the loss; None is the mean of `loss` over the steps.
        scaffold: None is the default one.
        input_hooks: hooks that the input needs; they come first.
        hooks: hooks that the program adds in this mode.
        chief_hooks: hooks that the program adds on the chief.
        host_call: the ops of the host call, for a device loop to run; None if there is none or a
            hook runs them.
        before_save: called with the session, brings the table variables up to date; None if they
            always are.
        end_of_loop: the train_op of the last step of a loop, which also brings the table variables
            up to date: stock retrieves the tables then, and applies pending updates. None is the
            train_op of the other steps.
        tables: which variables are the tables of an embedding spec.
    """

    loss: Tensor | None = None
    train_op: Op = None
    predictions: Nest = None
    eval_metric_ops: dict[str, Object] = dataclasses.field(default_factory=dict)
    mean_loss: MetricOps | None = None
    scaffold: tf.train.Scaffold | None = None
    input_hooks: tuple[Hook, ...] = ()
    hooks: tuple[Hook, ...] = ()
    chief_hooks: tuple[Hook, ...] = ()
    host_call: Nest = None
    before_save: Callable[[Session], None] | None = None
    end_of_loop: Op = None
    tables: TableVariables = dataclasses.field(default_factory=TableVariables)


def step_of_spec(
    mode: str,
    spec: ModelSpec,
    input_hooks: list[Hook],
    call_on_host: Callable[[str], Nest],
    *,
    loop_runs_host_call: bool = False,
) -> ModelStep:
    """Returns the step that a spec describes, stock's classes or ours, TPU or not.

    Args:
        call_on_host: returns the results of the function in a field of the spec, "eval_metrics" or
            "host_call".
        loop_runs_host_call: whether a device loop runs the ops of the host call, so that the hook
            has to care for the summary writers alone.
    """
    hooks = list(getattr(spec, _MODE_HOOKS[mode]) or ())
    metrics = getattr(spec, "eval_metric_ops", None) or {}
    if getattr(spec, "eval_metrics", None):
        metrics = call_on_host("eval_metrics")
    host_call = None
    if getattr(spec, "host_call", None):
        host_call = call_on_host("host_call")
        hooks.append(HostCallHook(None if loop_runs_host_call else host_call))
    return ModelStep(
        loss=spec.loss,
        train_op=spec.train_op,
        predictions=spec.predictions,
        eval_metric_ops=metrics,
        scaffold=_scaffold(spec),
        input_hooks=tuple(input_hooks),
        hooks=tuple(hooks),
        host_call=host_call if loop_runs_host_call else None,
    )


def check_spec(mode: str, spec: Object) -> None:
    """Raises an error if a model_fn returned no spec of this mode.

    Raises:
        WrongType: it is not an EstimatorSpec or TPUEstimatorSpec.
        InvalidInput: a field that the mode needs is None.
    """
    if not hasattr(spec, "loss") or not hasattr(spec, "train_op"):
        raise errors.WrongType(
            f"model_fn should return an EstimatorSpec or TPUEstimatorSpec, got {spec!r}."
        )
    for field in _NEEDED_FIELDS[mode]:
        if getattr(spec, field) is None:
            raise errors.InvalidInput(f"model_fn returned no {field} for mode {mode!r}.")


def metric_ops(metric: Object) -> MetricOps:
    """Returns the value of a metric and the op that updates it; Keras's metrics are objects."""
    if isinstance(metric, tuple):
        return metric
    return metric.result(), tf.group(*metric.updates)


def _scaffold(spec: ModelSpec) -> tf.train.Scaffold | None:
    scaffold_fn = getattr(spec, "scaffold_fn", None)
    return scaffold_fn() if scaffold_fn else getattr(spec, "scaffold", None)
