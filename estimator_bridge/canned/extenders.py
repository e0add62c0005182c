"""`add_metrics` and `call_logit_fn`, with which programs build estimators of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys, TPUEstimatorSpec
from estimator_bridge.legacy.requirements import argument_names
from estimator_bridge.runtime.estimator.base_estimator import Estimator
from estimator_bridge.runtime.program_types import ModelSpec
from tf2_engine.types import Nest, Object

_TAKES = ("features", "labels", "predictions", "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Mapping[str, Object]]) -> Estimator:
    """Makes an Estimator that computes more metrics than `estimator`, and is otherwise the same.

    `metric_fn` takes any of features, labels, predictions and config. It returns a dict from names
    to pairs (value, update op) or Keras metrics. They replace `estimator`'s metrics of the same
    name.

    Raises:
        InvalidInput: `metric_fn` has an argument that is none of these four.
    """
    taken = argument_names(metric_fn)
    unexpected = sorted(set(taken) - set(_TAKES))
    if unexpected:
        raise errors.InvalidInput(
            f"metric_fn ({metric_fn}) has following not expected args: {unexpected}. It may take "
            f"any of {', '.join(_TAKES)}."
        )

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        arguments = {
            "features": features,
            "labels": labels,
            "predictions": spec.predictions,
            "config": config,
        }
        if isinstance(spec, TPUEstimatorSpec):
            spec = spec.as_estimator_spec()
        added = metric_fn(**{name: arguments[name] for name in taken})
        return spec._replace(eval_metric_ops={**(spec.eval_metric_ops or {}), **added})

    return Estimator(
        model_fn,
        model_dir=estimator.model_dir,
        config=estimator.config,
        warm_start_from=estimator._warm_start,
    )


def call_logit_fn(
    logit_fn: Callable[..., Nest], features: Nest, mode: str, params: Object, config: Object
) -> Nest:
    """Calls a logit function with features, and with mode, params and config if it takes them.

    Raises:
        InvalidInput: the function returns neither a Tensor nor a dict from str to Tensor.
    """
    settings = {"mode": mode, "params": params, "config": config}
    taken = argument_names(logit_fn)
    logits = logit_fn(
        features=features, **{name: value for name, value in settings.items() if name in taken}
    )
    by_name = logits if isinstance(logits, dict) else {"": logits}
    for name, each in by_name.items():
        if not isinstance(name, str) or not isinstance(each, tf.Tensor):
            raise errors.InvalidInput(
                "logit_fn should return a Tensor or a dictionary mapping strings to Tensors.  "
                f"logit_fn returned: {logits}."
            )
    return logits
