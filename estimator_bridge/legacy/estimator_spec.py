"""What a model_fn returns: `EstimatorSpec`, and `TPUEstimatorSpec` for TPU models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy import spec_checks
from estimator_bridge.legacy.checks import argument_names, takes_any_number
from estimator_bridge.legacy.spec_checks import ModeKeys
from tf2_engine import tf_compat

__all__ = ["EstimatorSpec", "ModeKeys", "TPUEstimatorSpec", "call_host_fn"]

Hooks = tuple[tf.compat.v1.train.SessionRunHook, ...]
HostCall = tuple[Callable[..., Any], Sequence[Any] | Mapping[str, Any]]


class _EstimatorSpec(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: Mapping[str, Any]
    export_outputs: Any
    training_chief_hooks: Hooks
    training_hooks: Hooks
    scaffold: Any
    evaluation_hooks: Hooks
    prediction_hooks: Hooks


class EstimatorSpec(_EstimatorSpec):
    """A model: its ops and objects.

    Attributes:
        mode: one of `ModeKeys`. Training needs `loss` and `train_op`, evaluation `loss`,
            prediction `predictions`.
        predictions: Tensor or dict of Tensors.
        loss: scalar Tensor.
        train_op: Operation or Tensor that makes a step.
        eval_metric_ops: for each metric (value, update op), or a Keras metric.
        export_outputs: outputs of a SavedModel by signature name; None makes one of the
            predictions.
        training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: hooks of the
            session.
        scaffold: a `tf.compat.v1.train.Scaffold`.

    Raises:
        InvalidSpec: something the mode needs is missing, or of another graph or shape.
        WrongType: something is of the wrong type.
    """

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Any = None,
        training_chief_hooks: Iterable[Any] | None = None,
        training_hooks: Iterable[Any] | None = None,
        scaffold: Any = None,
        evaluation_hooks: Iterable[Any] | None = None,
        prediction_hooks: Iterable[Any] | None = None,
    ) -> EstimatorSpec:
        """Checks the arguments and fills in what is missing."""
        predictions = spec_checks.checked_predictions(predictions, mode)
        return super().__new__(
            cls,
            mode,
            predictions,
            spec_checks.checked_loss(loss, mode),
            spec_checks.checked_train_op(train_op, mode),
            spec_checks.checked_metrics(eval_metric_ops),
            _export_outputs(export_outputs, predictions, mode),
            spec_checks.checked_hooks(training_chief_hooks),
            spec_checks.checked_hooks(training_hooks),
            spec_checks.checked_scaffold(scaffold),
            spec_checks.checked_hooks(evaluation_hooks),
            spec_checks.checked_hooks(prediction_hooks),
        )

    def _replace(self, **changes: Any) -> EstimatorSpec:
        """Returns a spec with other values for some fields, checked; the mode stays.

        Raises:
            InvalidSpec: another mode is asked for.
        """
        if changes.get("mode", self.mode) != self.mode:
            raise errors.InvalidSpec(
                f"`EstimatorSpec`: `mode` is {self.mode!r} and cannot become {changes['mode']!r}."
            )
        return EstimatorSpec(**{**self._asdict(), **changes})


class _TPUEstimatorSpec(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metrics: HostCall | None
    export_outputs: Any
    scaffold_fn: Callable[[], Any] | None
    host_call: HostCall | None
    training_hooks: Hooks
    evaluation_hooks: Hooks
    prediction_hooks: Hooks


class TPUEstimatorSpec(_TPUEstimatorSpec):
    """A TPU model: what runs on the cores, and what the host does with tensors from there.

    Attributes:
        mode: one of `ModeKeys`, with the needs of `EstimatorSpec`.
        eval_metrics: (function, tensors): the function runs on the host and returns the metrics,
            (value, update op) by name; the tensors, [batch, ...], are a list for positional or a
            dict for keyword arguments.
        scaffold_fn: makes the `Scaffold`, on the host.
        host_call: (function, tensors) like `eval_metrics`; what it returns is run every step.

    Raises:
        InvalidSpec: as for `EstimatorSpec`; or a pair is none.
        WrongType: as for `EstimatorSpec`; or the first of a pair cannot be called.
        SignatureMismatch: a function takes another number of arguments than there are tensors.
    """

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metrics: HostCall | None = None,
        export_outputs: Any = None,
        scaffold_fn: Callable[[], Any] | None = None,
        host_call: HostCall | None = None,
        training_hooks: Iterable[Any] | None = None,
        evaluation_hooks: Iterable[Any] | None = None,
        prediction_hooks: Iterable[Any] | None = None,
    ) -> TPUEstimatorSpec:
        """Checks the arguments and fills in what is missing."""
        _check_host_call("eval_metrics", eval_metrics)
        _check_host_call("host_call", host_call)
        predictions = spec_checks.checked_predictions(predictions, mode)
        return super().__new__(
            cls,
            mode,
            predictions,
            spec_checks.checked_loss(loss, mode),
            spec_checks.checked_train_op(train_op, mode),
            eval_metrics,
            _export_outputs(export_outputs, predictions, mode),
            scaffold_fn,
            host_call,
            spec_checks.checked_hooks(training_hooks),
            spec_checks.checked_hooks(evaluation_hooks),
            spec_checks.checked_hooks(prediction_hooks),
        )

    def as_estimator_spec(self) -> EstimatorSpec:
        """Returns the same model for a host alone: metrics and host call are made here."""
        metrics = None if self.eval_metrics is None else call_host_fn(self.eval_metrics)
        hooks: Hooks = ()
        if self.host_call is not None:
            hooks = (HostCallHook(call_host_fn(self.host_call)),)
        return EstimatorSpec(
            mode=self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metric_ops=metrics,
            export_outputs=self.export_outputs,
            scaffold=self.scaffold_fn() if self.scaffold_fn else None,
            training_hooks=self.training_hooks + hooks,
            evaluation_hooks=self.evaluation_hooks + hooks,
            prediction_hooks=self.prediction_hooks + hooks,
        )


class HostCallHook(tf.compat.v1.train.SessionRunHook):
    """Runs the ops of a host call every step, and writes out its summaries at the end."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors
        self._create_writers: list[Any] = []
        self._flush_writers: list[Any] = []

    def begin(self) -> None:
        """Collects the summary writers of the graph."""
        self._create_writers = tf_compat.summary_writer_initializers()
        self._flush_writers = [
            tf.raw_ops.FlushSummaryWriter(writer=op.inputs[0]) for op in self._create_writers
        ]

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Creates the summary writers."""
        session.run(self._create_writers)

    def before_run(self, run_context: Any) -> Any:
        """Adds the ops of the host call to a step."""
        return tf.compat.v1.train.SessionRunArgs(self._tensors)

    def end(self, session: Any) -> None:
        """Flushes the summary writers."""
        session.run(self._flush_writers)


def call_host_fn(host_call: HostCall) -> Any:
    """Calls the function of a pair (function, tensors) with the tensors."""
    function, tensors = host_call
    return function(**tensors) if isinstance(tensors, Mapping) else function(*tensors)


def _check_host_call(name: str, host_call: Any) -> None:
    """Refuses what is no pair of a function and its tensors."""
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
            f"arguments, {names}."
        )


def _export_outputs(export_outputs: Any, predictions: Any, mode: str) -> Any:
    if mode != ModeKeys.PREDICT:
        return export_outputs
    return tf_compat.export_outputs(export_outputs, predictions)
