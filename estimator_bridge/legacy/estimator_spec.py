"""The results of a model_fn: `EstimatorSpec`, and `TPUEstimatorSpec` for TPU models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy import host_calls
from estimator_bridge.legacy.host_calls import HostCall
from estimator_bridge.legacy.requirements import checked
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Op, Tensor

Hooks: TypeAlias = Object
"""Several SessionRunHooks. A program may give any iterable; a checked spec has a tuple."""

Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
ExportOutputs: TypeAlias = Mapping[str, Object]


class ModeKeys:
    """The modes in which a model_fn is called."""

    TRAIN: Final = "train"
    EVAL: Final = "eval"
    PREDICT: Final = "infer"


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
        fields["eval_metric_ops"] = _checked_metrics(self.eval_metric_ops)
        fields["scaffold"] = _checked_scaffold(self.scaffold)
        return _EstimatorSpec._replace(self, **fields)


class EstimatorSpec(_EstimatorSpec):
    """The ops and objects of a model for one mode.

    Attributes:
        mode: one of `ModeKeys`. Training needs `loss` and `train_op`, evaluation needs `loss`,
            prediction needs `predictions`. As in stock, None requires nothing.
        predictions: Tensor or dict of Tensors.
        loss: scalar Tensor.
        eval_metric_ops: maps the name of each metric to a pair (value, update op) or a Keras
            metric.
        export_outputs: maps each signature name of a SavedModel to its outputs; None means
            `predictions`.

    Raises:
        InvalidSpec: an argument that the mode needs is missing, or has the wrong graph or shape.
        WrongType: an argument has the wrong type.
    """

    def _replace(self, **changes: Object) -> EstimatorSpec:
        """Returns a checked spec with some fields changed. Changing `mode` raises InvalidSpec."""
        if changes.get("mode", self.mode) != self.mode:
            raise errors.InvalidSpec(
                f"mode of EstimatorSpec cannot be changed from {self.mode!r} to "
                f"{changes['mode']!r}."
            )
        return EstimatorSpec(**{**self._asdict(), **changes})


@checked
class TPUEstimatorSpec(NamedTuple):
    """An `EstimatorSpec` with functions that run on the host with tensors from the cores.

    Attributes:
        eval_metrics: (function, tensors). The function returns a dict from each metric's name to a
            pair (value, update op). The tensors, [batch, ...], are a list of positional arguments
            or a dict of keyword arguments.
        scaffold_fn: returns the `Scaffold`.
        host_call: (function, tensors) as in `eval_metrics`; the function's ops run every step.

    Raises:
        InvalidSpec, WrongType: as in `EstimatorSpec`; or `eval_metrics` or `host_call` is not a
            pair.
        SignatureMismatch: a function takes more or fewer arguments than there are tensors.
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
    mode = fields["mode"]
    predictions = _checked_predictions(fields["predictions"], mode)
    filled = {
        **fields,
        "predictions": predictions,
        "loss": _checked_loss(fields["loss"], mode),
        "train_op": _checked_train_op(fields["train_op"], mode),
    }
    if mode == ModeKeys.PREDICT:
        outputs = tf_compat.export_outputs(fields["export_outputs"], predictions)
        filled["export_outputs"] = outputs
    for name in fields:
        if name.endswith("_hooks"):
            filled[name] = checked_hooks(fields[name])
    return filled


# Each check returns its argument with defaults filled in.


def _checked_train_op(train_op: Object, mode: str | None) -> Op:
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise errors.InvalidSpec(
                "Missing train_op: training needs the `train_op` of a model_fn."
            )
        return None
    if isinstance(train_op, tf.Variable):
        # In a graph, functions such as `tf.compat.v1.assign_add` return such a variable.
        train_op = train_op.op
    if not isinstance(train_op, (tf.Operation, tf.Tensor)):
        raise errors.WrongType(f"train_op must be Operation or Tensor, got {train_op!r}.")
    _check_graph("train_op", train_op)
    return train_op


def _checked_loss(loss: Object, mode: str | None) -> Tensor | None:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise errors.InvalidSpec(f"Missing loss: mode {mode!r} needs the `loss` of a model_fn.")
        return None
    _check_tensor("loss", loss)
    if loss.shape.num_elements() not in (None, 1):
        raise errors.InvalidSpec(f"Loss must be scalar, got `loss` of shape {loss.shape}.")
    return loss if loss.shape.is_compatible_with([]) else tf.reshape(loss, [])


def _checked_predictions(predictions: Object, mode: str | None) -> Nest:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise errors.InvalidSpec(
                "Missing predictions: mode 'infer' needs the `predictions` of a model_fn."
            )
        return {}
    named = {"predictions": predictions}
    if isinstance(predictions, dict):
        named = {f"predictions[{name}]": value for name, value in predictions.items()}
    for what, value in named.items():
        _check_tensor(what, value)
    return dict(predictions) if isinstance(predictions, dict) else predictions


def checked_hooks(
    hooks: Iterable[Object] | None, text: str = "All hooks must be SessionRunHook instances"
) -> tuple[Object, ...]:
    return checked_all(hooks, tf.compat.v1.train.SessionRunHook, text)


def checked_all(things: Iterable[Object] | None, kind: type, text: str) -> tuple[Object, ...]:
    things = tuple(things or ())
    for each in things:
        if not isinstance(each, kind):
            raise errors.WrongType(f"{text}, got {each!r}.")
    return things


def _checked_scaffold(scaffold: Object) -> Object:
    scaffold = scaffold or tf.compat.v1.train.Scaffold()
    if not isinstance(scaffold, tf.compat.v1.train.Scaffold):
        raise errors.WrongType(f"scaffold must be tf.train.Scaffold, got {scaffold!r}.")
    return scaffold


def _checked_metrics(metrics: Mapping[str, Object] | None) -> dict[str, Object]:
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise errors.WrongType(f"eval_metric_ops must be a dict, got {metrics!r}.")
    for name, metric in metrics.items():
        _check_metric(name, metric)
    return {
        name: (metric.result(), tf_compat.update_of_metric(metric))
        if _is_keras_metric(metric)
        else metric
        for name, metric in metrics.items()
    }


def _check_metric(name: str, metric: Object) -> None:
    what = f"eval_metric_ops[{name!r}]"
    if _is_keras_metric(metric):
        update = tf_compat.update_of_metric(metric)
        if update is None:
            raise errors.InvalidSpec(
                f"`{what}`: metric {metric.name!r} has no update. Please call update_state(...)."
            )
        keys = tf.compat.v1.GraphKeys
        for key in (keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES):
            known = {id(variable) for variable in tf.compat.v1.get_collection(key)}
            for variable in metric.variables:
                if id(variable) not in known:
                    tf.compat.v1.add_to_collection(key, variable)
        # Stock's check also reads the results, which affects the names of later ops.
        metric = (metric.result(), update)
    if not isinstance(metric, tuple) or len(metric) != 2:
        raise errors.WrongType(
            "Values of eval_metric_ops must be (metric_value, update_op) tuples or Keras metrics, "
            f"got {metric!r} for {name!r}."
        )
    for value in tf.nest.flatten(metric):
        _check_graph(what, value)


def _is_keras_metric(metric: Object) -> bool:
    # The check reads attributes, because the first use of tf.keras fixes the Keras version of the
    # process. Metrics of Keras 3 have no `updates` and do not work in a graph.
    return all(hasattr(metric, name) for name in ("updates", "update_state", "result"))


def _check_tensor(what: str, value: Object) -> None:
    if not isinstance(value, (tf.Tensor, tf.Variable)):
        raise errors.WrongType(f"{what} must be Tensor, got {value!r}.")
    _check_graph(what, value)


def _check_graph(what: str, value: Object) -> None:
    if not tf.executing_eagerly() and value.graph is not tf.compat.v1.get_default_graph():
        raise errors.InvalidSpec(
            f"`{what}` must be from the default graph, but {value!r} belongs to another graph. "
            "Create it anew in every call to the model_fn."
        )
