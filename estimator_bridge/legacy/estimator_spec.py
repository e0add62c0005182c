"""The results of a model_fn: `EstimatorSpec`, and `TPUEstimatorSpec` for TPU models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy import host_calls, spec_checks
from estimator_bridge.legacy.host_calls import HostCall
from estimator_bridge.legacy.requirements import checked
from estimator_bridge.legacy.spec_checks import ModeKeys
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Op, Tensor

__all__ = ["EstimatorSpec", "ModeKeys", "TPUEstimatorSpec"]

Hooks: TypeAlias = Object
"""SessionRunHooks; a tuple once they are checked."""

Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
ExportOutputs: TypeAlias = Mapping[str, Object]


@checked
class _EstimatorSpec(NamedTuple):
    mode: str | None
    predictions: Nest = None
    loss: Tensor | None = None
    train_op: Op = None
    eval_metric_ops: Mapping[str, Object] | None = None
    export_outputs: ExportOutputs | None = None
    training_chief_hooks: Hooks = None
    training_hooks: Hooks = None
    scaffold: Scaffold | None = None
    evaluation_hooks: Hooks = None
    prediction_hooks: Hooks = None

    def _checked(self) -> Object:
        fields = _checked_fields(self._asdict())
        fields["eval_metric_ops"] = spec_checks.checked_metrics(self.eval_metric_ops)
        fields["scaffold"] = spec_checks.checked_scaffold(self.scaffold)
        return _EstimatorSpec._replace(self, **fields)


class EstimatorSpec(_EstimatorSpec):
    """The ops and objects of a model for one mode.

    Attributes:
        mode: one of `ModeKeys`. Training needs `loss` and `train_op`, evaluation needs `loss`,
            prediction needs `predictions`. With None, nothing is required, as in stock.
        predictions: Tensor or dict of Tensors.
        loss: scalar Tensor.
        train_op: Operation or Tensor that performs a training step.
        eval_metric_ops: by name, (value, update op) or a Keras metric.
        export_outputs: outputs of a SavedModel by signature name; if None in prediction, the
            predictions become one.
        training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: SessionRunHooks.
        scaffold: a `tf.compat.v1.train.Scaffold`.

    Raises:
        InvalidSpec: an argument that the mode needs is missing, or has the wrong graph or shape.
        WrongType: an argument has the wrong type.
    """

    def _replace(self, **changes: Object) -> EstimatorSpec:
        """Returns a checked spec with some fields changed; the mode must stay the same.

        Raises:
            InvalidSpec: `mode` is changed.
        """
        if changes.get("mode", self.mode) != self.mode:
            raise errors.InvalidSpec(
                f"mode of EstimatorSpec cannot be changed, from {self.mode!r} to "
                f"{changes['mode']!r}."
            )
        return EstimatorSpec(**{**self._asdict(), **changes})


@checked
class TPUEstimatorSpec(NamedTuple):
    """A TPU model: ops for the cores, and functions for the host that take tensors from the cores.

    Attributes:
        mode: one of `ModeKeys`, with the same needs as in `EstimatorSpec`.
        eval_metrics: (function, tensors). The function runs on the host and returns the metrics,
            (value, update op) by name. The tensors, [batch, ...], are a list for positional or a
            dict for keyword arguments.
        scaffold_fn: returns the `Scaffold`; runs on the host.
        host_call: (function, tensors) like `eval_metrics`; the ops that the function returns run
            every step.

    Raises:
        InvalidSpec: as in `EstimatorSpec`; or `eval_metrics` or `host_call` is not a pair.
        WrongType: as in `EstimatorSpec`; or the first element of a pair is not callable.
        SignatureMismatch: a function takes another number of arguments than there are tensors.
    """

    mode: str | None
    predictions: Nest = None
    loss: Tensor | None = None
    train_op: Op = None
    eval_metrics: HostCall | None = None
    export_outputs: ExportOutputs | None = None
    scaffold_fn: Callable[[], Scaffold] | None = None
    host_call: HostCall | None = None
    training_hooks: Hooks = None
    evaluation_hooks: Hooks = None
    prediction_hooks: Hooks = None

    def _checked(self) -> TPUEstimatorSpec:
        host_calls.check_host_call("eval_metrics", self.eval_metrics)
        host_calls.check_host_call("host_call", self.host_call)
        return self._replace(**_checked_fields(self._asdict()))

    def as_estimator_spec(self) -> EstimatorSpec:
        """Returns the same model for a host; calls the functions of metrics and host call."""
        metrics = None if self.eval_metrics is None else host_calls.call_host_fn(self.eval_metrics)
        fields = {
            name: getattr(self, name) for name in self._fields if name in EstimatorSpec._fields
        }
        if self.host_call is not None:
            hook = host_calls.HostCallHook(host_calls.call_host_fn(self.host_call))
            for name in ("training_hooks", "evaluation_hooks", "prediction_hooks"):
                fields[name] = (*fields[name], hook)
        fields["scaffold"] = self.scaffold_fn() if self.scaffold_fn else None
        return EstimatorSpec(**fields, eval_metric_ops=metrics)


def _checked_fields(fields: dict[str, Object]) -> dict[str, Object]:
    """Checks and fills in the fields that both classes have; returns all fields."""
    mode = fields["mode"]
    predictions = spec_checks.checked_predictions(fields["predictions"], mode)
    filled = {
        **fields,
        "predictions": predictions,
        "loss": spec_checks.checked_loss(fields["loss"], mode),
        "train_op": spec_checks.checked_train_op(fields["train_op"], mode),
    }
    if mode == ModeKeys.PREDICT:
        outputs = tf_compat.export_outputs(fields["export_outputs"], predictions)
        filled["export_outputs"] = outputs
    for name in fields:
        if name.endswith("_hooks"):
            filled[name] = spec_checks.checked_hooks(fields[name])
    return filled
