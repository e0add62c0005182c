"""Checks the result of a model_fn; each function returns its argument with defaults filled in.

They raise InvalidSpec if the mode needs something that is missing or something belongs to another
graph, and WrongType for objects of the wrong type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import tensorflow as tf

from estimator_bridge import errors
from tf2_engine.types import Nest, Object, Op, Tensor


class ModeKeys:
    """The modes in which a model_fn is called."""

    TRAIN: Final = "train"
    EVAL: Final = "eval"
    PREDICT: Final = "infer"


def checked_train_op(train_op: Object, mode: str | None) -> Op:
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise errors.InvalidSpec(
                "Missing train_op: training needs the `train_op` of a model_fn."
            )
        return None
    if isinstance(train_op, tf.Variable):
        # In a graph, `tf.compat.v1.assign_add` and the like return such a variable.
        train_op = train_op.op
    if not isinstance(train_op, (tf.Operation, tf.Tensor)):
        raise errors.WrongType(f"train_op must be Operation or Tensor, got {train_op!r}.")
    _check_graph("train_op", train_op)
    return train_op


def checked_loss(loss: Object, mode: str | None) -> Tensor | None:
    """Returns the loss as a scalar; raises InvalidSpec if it has several elements."""
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise errors.InvalidSpec(f"Missing loss: mode {mode!r} needs the `loss` of a model_fn.")
        return None
    _check_tensor("loss", loss)
    if loss.shape.num_elements() not in (None, 1):
        raise errors.InvalidSpec(f"Loss must be scalar, got `loss` of shape {loss.shape}.")
    return loss if loss.shape.is_compatible_with([]) else tf.reshape(loss, [])


def checked_predictions(predictions: Object, mode: str | None) -> Nest:
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
    hooks: Iterable[Object] | None, kind: str = "SessionRunHook"
) -> tuple[Object, ...]:
    """Returns SessionRunHooks as a tuple; stock's message calls their class `kind`."""
    return checked_all(hooks, tf.compat.v1.train.SessionRunHook, f"All hooks must be {kind}")


def checked_all(things: Iterable[Object] | None, kind: type, message: str) -> tuple[Object, ...]:
    """Returns objects of one class as a tuple; `message` begins the error for any other."""
    things = tuple(things or ())
    for each in things:
        if not isinstance(each, kind):
            raise errors.WrongType(f"{message} instances, got {each!r}.")
    return things


def checked_scaffold(scaffold: Object) -> Object:
    scaffold = scaffold or tf.compat.v1.train.Scaffold()
    if not isinstance(scaffold, tf.compat.v1.train.Scaffold):
        raise errors.WrongType(f"scaffold must be tf.train.Scaffold, got {scaffold!r}.")
    return scaffold


def checked_metrics(metrics: Mapping[str, Object] | None) -> dict[str, Object]:
    """Returns metrics as pairs of a value and an update op, by name.

    Variables of Keras metrics are added to the collections that sessions initialize. A Keras metric
    that was never updated raises InvalidSpec.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise errors.WrongType(f"eval_metric_ops must be a dict, got {metrics!r}.")
    for name, metric in metrics.items():
        _check_metric(name, metric)
    return {
        name: (metric.result(), metric.updates[0]) if _is_keras_metric(metric) else metric
        for name, metric in metrics.items()
    }


def _check_metric(name: str, metric: Object) -> None:
    what = f"eval_metric_ops[{name!r}]"
    if _is_keras_metric(metric):
        if not metric.updates:
            raise errors.InvalidSpec(
                f"`{what}`: the metric {metric.name!r} has no update. Please call "
                "update_state(...) of it."
            )
        keys = tf.compat.v1.GraphKeys
        for key in (keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES):
            known = {id(variable) for variable in tf.compat.v1.get_collection(key)}
            for variable in metric.variables:
                if id(variable) not in known:
                    tf.compat.v1.add_to_collection(key, variable)
        # Stock's check reads the results too, which affects the names of later ops.
        metric = (metric.result(), metric.updates[0])
    if not isinstance(metric, tuple) or len(metric) != 2:
        raise errors.WrongType(
            "Values of eval_metric_ops must be (metric_value, update_op) tuples or Keras metrics, "
            f"got {metric!r} for {name!r}."
        )
    for value in tf.nest.flatten(metric):
        _check_graph(what, value)


def _is_keras_metric(metric: Object) -> bool:
    # By attribute: using tf.keras would settle which Keras the process has. Metrics of Keras 3 have
    # no `updates` and do not work in a graph.
    return all(hasattr(metric, name) for name in ("updates", "update_state", "result"))


def _check_tensor(what: str, value: Object) -> None:
    if not isinstance(value, (tf.Tensor, tf.Variable)):
        raise errors.WrongType(f"{what} must be Tensor, got {value!r}.")
    _check_graph(what, value)


def _check_graph(what: str, value: Object) -> None:
    if not tf.executing_eagerly() and value.graph is not tf.compat.v1.get_default_graph():
        raise errors.InvalidSpec(
            f"`{what}` must be from the default graph, but {value!r} belongs to another graph. "
            "Make it inside the model_fn, anew in every call."
        )
