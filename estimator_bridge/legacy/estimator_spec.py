"""The results of a model_fn: `EstimatorSpec`, and `TPUEstimatorSpec` for TPU models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy import spec_checks
from estimator_bridge.legacy.requirements import argument_names, checked, takes_any_number
from estimator_bridge.legacy.spec_checks import ModeKeys
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Op, Session, Tensor

__all__ = ["EstimatorSpec", "ModeKeys", "TPUEstimatorSpec", "call_host_fn"]

Hooks: TypeAlias = Object
"""SessionRunHooks; a tuple, once they are checked."""

Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
ExportOutputs: TypeAlias = Mapping[str, Object]
HostCall: TypeAlias = tuple[Callable[..., Nest], Sequence[Tensor] | Mapping[str, Tensor]]


@checked
class _EstimatorSpec(NamedTuple):
    mode: str
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
    """A model for one mode: its ops and objects.

    Attributes:
        mode: one of `ModeKeys`. Training needs `loss` and `train_op`, evaluation `loss`,
            prediction `predictions`.
        predictions: Tensor or dict of Tensors.
        loss: scalar Tensor.
        train_op: Operation or Tensor that performs a training step.
        eval_metric_ops: by name, (value, update op) or a Keras metric.
        export_outputs: outputs of a SavedModel by signature name; if None in prediction, one is
            made of the predictions.
        training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: SessionRunHooks.
        scaffold: a `tf.compat.v1.train.Scaffold`.

    Raises:
        InvalidSpec: an argument that the mode needs is missing, or of another graph or shape.
        WrongType: an argument is of the wrong type.
    """

    def _replace(self, **changes: Object) -> EstimatorSpec:
        """Returns a checked spec with other values for some fields; the mode cannot be changed.

        Raises:
            InvalidSpec: `mode` is another one.
        """
        if changes.get("mode", self.mode) != self.mode:
            raise errors.InvalidSpec(
                f"mode of EstimatorSpec cannot be changed, from {self.mode!r} to "
                f"{changes['mode']!r}."
            )
        return EstimatorSpec(**{**self._asdict(), **changes})


@checked
class TPUEstimatorSpec(NamedTuple):
    """A TPU model: ops on the cores, and functions of the host that take tensors from there.

    Attributes:
        mode: one of `ModeKeys`; it needs the same as in `EstimatorSpec`.
        eval_metrics: (function, tensors): the function runs on the host and returns the metrics,
            (value, update op) by name; the tensors, [batch, ...], are a list for positional or a
            dict for keyword arguments.
        scaffold_fn: returns the `Scaffold`; runs on the host.
        host_call: (function, tensors) like `eval_metrics`; the ops that the function returns are
            run every step.

    Raises:
        InvalidSpec: as for `EstimatorSpec`; or `eval_metrics` or `host_call` is not a pair.
        WrongType: as for `EstimatorSpec`; or the first of a pair is not callable.
        SignatureMismatch: a function takes another number of arguments than there are tensors.
    """

    mode: str
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
        _check_host_call("eval_metrics", self.eval_metrics)
        _check_host_call("host_call", self.host_call)
        return self._replace(**_checked_fields(self._asdict()))

    def as_estimator_spec(self) -> EstimatorSpec:
        """Returns the same model for a host; calls the functions of metrics and host call."""
        metrics = None if self.eval_metrics is None else call_host_fn(self.eval_metrics)
        fields = {
            name: getattr(self, name) for name in self._fields if name in EstimatorSpec._fields
        }
        if self.host_call is not None:
            hook = HostCallHook(call_host_fn(self.host_call))
            for name in ("training_hooks", "evaluation_hooks", "prediction_hooks"):
                fields[name] = (*fields[name], hook)
        fields["scaffold"] = self.scaffold_fn() if self.scaffold_fn else None
        return EstimatorSpec(**fields, eval_metric_ops=metrics)


class HostCallHook(tf.compat.v1.train.SessionRunHook):
    """Runs the ops of a host call every step, and flushes its summaries at the end."""

    def __init__(self, tensors: Nest) -> None:
        self._tensors = tensors
        self._create_writers: list[Op] = []
        self._flush_writers: list[Op] = []

    def begin(self) -> None:
        """Collects the summary writers of the graph."""
        self._create_writers = tf_compat.summary_writer_initializers()
        self._flush_writers = [
            tf.raw_ops.FlushSummaryWriter(writer=op.inputs[0]) for op in self._create_writers
        ]

    def after_create_session(self, session: Session, coord: Object) -> None:
        """Creates the summary writers."""
        session.run(self._create_writers)

    def before_run(self, run_context: Object) -> tf.compat.v1.train.SessionRunArgs:
        """Runs the ops of the host call in each step."""
        return tf.compat.v1.train.SessionRunArgs(self._tensors)

    def end(self, session: Session) -> None:
        """Flushes the summary writers."""
        session.run(self._flush_writers)


def call_host_fn(host_call: HostCall) -> Nest:
    """Calls the function of a pair (function, tensors) with the tensors."""
    function, tensors = host_call
    return function(**tensors) if isinstance(tensors, Mapping) else function(*tensors)


def _check_host_call(name: str, host_call: Object) -> None:
    """Checks that a host call is None, or a pair of a function and the tensors that it takes."""
    if host_call is None:
        return
    what = f"`TPUEstimatorSpec.{name}`"
    if not isinstance(host_call, (tuple, list)) or len(host_call) != 2:
        raise errors.InvalidSpec(f"{what} must be a pair (function, tensors), got {host_call!r}.")
    function, tensors = host_call
    if not callable(function):
        raise errors.WrongType(f"{what}: the first must be a function, got {function!r}.")
    if not isinstance(tensors, (tuple, list, dict)):
        raise errors.InvalidSpec(
            f"{what}: the tensors must be a list, tuple or dict, got {tensors!r}."
        )
    if isinstance(tensors, dict) or takes_any_number(function):
        return
    names = argument_names(function)
    if len(names) != len(tensors):
        raise errors.SignatureMismatch(
            f"{what}: there are {len(tensors)} tensors, but the function takes {len(names)} "
            f"arguments, {names}. Give a tensor for each argument."
        )


def _checked_fields(fields: dict[str, Object]) -> dict[str, Object]:
    """Returns the fields of a spec; those that both classes have are checked and filled in."""
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
