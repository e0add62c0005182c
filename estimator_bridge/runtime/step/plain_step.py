"""Steps with use_tpu=False: the model as an ordinary Estimator runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import HostCallHook, ModeKeys
from estimator_bridge.runtime.input.feeding import read_batch
from estimator_bridge.runtime.step.host_calls import call_with_all_cores
from estimator_bridge.runtime.step.model_step import Step

MODE_HOOKS = {
    ModeKeys.TRAIN: "training_hooks",
    ModeKeys.EVAL: "evaluation_hooks",
    ModeKeys.PREDICT: "prediction_hooks",
}
"""The field of a spec that holds a mode's hooks."""


def build_plain_step(
    mode: str,
    input_fn: Callable[[], Any],
    model_fn: Callable[[Any, Any], Any],
    look_up: Callable[[Any], Any] | None = None,
) -> Step:
    """Builds a step in the default graph.

    Args:
        input_fn: gives a dataset, or features, or (features, labels).
        look_up: makes what the model gets of the features; None leaves them to it.
        model_fn: called with features and labels; gives an EstimatorSpec or TPUEstimatorSpec.
    """
    (features, labels), hooks = read_batch(input_fn)
    if mode == ModeKeys.PREDICT:
        labels = None
    if look_up is not None:
        features = look_up(features)
    return step_of_spec(mode, model_fn(features, labels), hooks)


def step_of_spec(mode: str, spec: Any, input_hooks: list[Any]) -> Step:
    """Returns the step that one spec describes, stock's classes or ours, TPU or not."""
    check_spec(mode, spec)
    hooks = list(getattr(spec, MODE_HOOKS[mode]) or ())
    metrics = getattr(spec, "eval_metric_ops", None) or {}
    if getattr(spec, "eval_metrics", None):
        metrics = call_with_all_cores("eval_metrics", [spec.eval_metrics])
    if getattr(spec, "host_call", None):
        hooks.append(HostCallHook(call_with_all_cores("host_call", [spec.host_call])))
    return Step(
        loss=spec.loss,
        train_op=spec.train_op,
        predictions=spec.predictions,
        eval_metric_ops=metrics,
        scaffold=scaffold_of(spec),
        input_hooks=tuple(input_hooks),
        hooks=tuple(hooks),
        chief_hooks=tuple(getattr(spec, "training_chief_hooks", None) or ()),
    )


def check_spec(mode: str, spec: Any) -> None:
    """Refuses what is no spec of this mode.

    Raises:
        WrongType: it is no EstimatorSpec.
        InvalidInput: what the mode needs is missing.
    """
    if not hasattr(spec, "loss") or not hasattr(spec, "train_op"):
        raise errors.WrongType(
            f"model_fn should return an EstimatorSpec or TPUEstimatorSpec, got {spec!r}."
        )
    needed = {
        ModeKeys.TRAIN: ("loss", "train_op"),
        ModeKeys.EVAL: ("loss",),
        ModeKeys.PREDICT: ("predictions",),
    }[mode]
    for field in needed:
        if getattr(spec, field) is None:
            raise errors.InvalidInput(f"model_fn returned no {field} for mode {mode!r}.")


def metric_ops(metric: Any) -> tuple[Any, Any]:
    """Returns the value of a metric and the op that updates it; Keras's metrics are objects."""
    if isinstance(metric, tuple):
        return metric
    return metric.result(), tf.group(*metric.updates)


def scaffold_of(spec: Any) -> tf.train.Scaffold | None:
    """Returns the scaffold of a spec, made if it is given as a function."""
    if getattr(spec, "scaffold_fn", None):
        return spec.scaffold_fn()
    return getattr(spec, "scaffold", None)
