"""Checks the inputs of heads.

In eager mode, and in a graph in which the shapes are known, the functions raise InvalidInput.
Otherwise they return the tensor with an assertion that raises InvalidArgumentError when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import argument_names
from estimator_bridge.runtime.program_types import Features
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Op, Tensor

_LOGITS_SHAPE = "logits shape must be [D0, D1, ... DN, logits_dimension]"
_NO_LABELS = (
    "You must provide a labels Tensor. Given: None. Check that the input_fn parses and returns the "
    "labels."
)


def check_list(name: str, value: Object) -> None:
    if value is not None and not isinstance(value, (list, tuple)):
        raise errors.InvalidInput(
            f"{name} should be a list or a tuple. Given type: {type(value)}. Put the values into a "
            "list."
        )


def check_reduction(reduction: Object, known: Iterable[str]) -> None:
    known = [each for each in known if each != "none"]
    if reduction not in known:
        raise errors.InvalidInput(
            f"Invalid loss_reduction: {reduction}. A head needs one loss for the batch: give one "
            f"of {', '.join(known)}."
        )


def check_loss_fn(loss_fn: Callable[..., Tensor] | None) -> None:
    if loss_fn is None:
        return
    names = argument_names(loss_fn)
    for needed in ("labels", "logits"):
        if needed not in names:
            raise errors.InvalidInput(
                f"loss_fn must contain argument: {needed}. Given arguments: {names}."
            )
    known = ("labels", "logits", "features", "loss_reduction")
    unexpected = [name for name in names if name not in known]
    if unexpected:
        raise errors.InvalidInput(
            f"loss_fn has unexpected args: {unexpected}. It may take labels, logits and, "
            "optionally, features."
        )


def check_trainable(variables: Object) -> None:
    if variables is None:
        raise errors.InvalidInput(
            "trainable_variables cannot be None. A Keras optimizer does not find the variables by "
            "itself: pass them as a list."
        )
    check_list("trainable_variables", variables)


def checked_logits(logits: Tensor, width: int) -> Tensor:
    with tf.name_scope(None, "logits", (logits,)) as scope:
        logits = tf.cast(logits, tf.float32)
        if tf.executing_eagerly():
            _check_rank("logits", logits)
            _check_width(logits, width)
            return logits
        shape = tf.shape(logits)
        is_matrix = tf.debugging.assert_rank_at_least(
            logits, 2, data=[shape], message=_LOGITS_SHAPE
        )
        with tf.control_dependencies([is_matrix]):
            if logits.shape.rank is not None and logits.shape[-1] is not None:
                _check_width(logits, width)
                return logits
            is_wide = tf.debugging.assert_equal(
                width, shape[-1], data=[shape], message=_LOGITS_SHAPE
            )
            return _behind(is_wide, logits, scope)


def checked_labels(
    labels: Nest, logits: Tensor, width: int, *, shapes_first: bool = False
) -> Tensor:
    """Checks that labels are dense, with `width` in the last axis, and otherwise like the logits.

    Labels with one axis less than the logits get a last axis of size 1. With `shapes_first`, the op
    `labels/Shape` computes the labels' shape, as in TensorFlow 1; otherwise this op computes the
    logits' shape.
    """
    if labels is None:
        raise errors.InvalidInput(_NO_LABELS)
    with tf.name_scope(None, "labels", (labels, logits)) as scope:
        labels = tf.convert_to_tensor_or_sparse_tensor(labels)
        if isinstance(labels, tf.SparseTensor):
            raise errors.InvalidInput(
                "SparseTensor labels are not supported. labels must be a Tensor of shape "
                f"[D0, D1, ..., DN, {width}], with {width} value(s) for each example. Convert the "
                "labels in the input_fn: tf.sparse.to_dense(labels)."
            )
        if _has_one_axis_less(labels, logits):
            labels = tf.expand_dims(labels, -1)
        message = (
            f"labels shape must be [D0, D1, ... DN, {width}]. Check the n_classes or "
            "label_dimension of the head, and the shape of the labels"
        )
        if tf.executing_eagerly():
            _check_rank("labels", labels)
            _check_label_width(labels, width)
            expected = (*logits.shape.as_list()[:-1], width)
            if expected != tuple(labels.shape.as_list()):
                raise errors.InvalidInput(
                    f"{message}. expected_labels_shape: {expected}. labels_shape: "
                    f"{tuple(labels.shape.as_list())}."
                )
            return labels
        shapes = (tf.shape(labels), tf.shape(logits)) if shapes_first else None
        is_matrix = tf.debugging.assert_rank_at_least(labels, 2, message=message)
        with tf.control_dependencies([is_matrix]):
            _check_label_width(labels, width)
            of_logits = shapes[1] if shapes else tf.shape(logits)
            expected = tf.concat([of_logits[:-1], [width]], axis=0)
            shape = shapes[0] if shapes else tf.shape(labels)
            fits = tf.debugging.assert_equal(
                expected,
                shape,
                message=message,
                data=["expected_labels_shape: ", expected, "labels_shape: ", shape],
            )
            return _behind(fits, labels, scope)


def checked_weights(
    features: Features,
    column: Object,
    logits: Tensor,
    *,
    per_logit: bool = False,
    numeric: bool = True,
) -> Tensor | float:
    """Computes a batch's weights as float32, [..., 1]; 1.0 if there is no weight column.

    `per_logit` also allows a weight for each logit, [..., logits].
    """
    with tf.name_scope(None, "weights", (*tf.nest.flatten(features), logits)) as scope:
        if column is None:
            return 1.0
        if isinstance(column, str):
            column = tf.feature_column.numeric_column(column, shape=(1,))
        if not tf_compat.is_dense_column(column, numeric=numeric):
            kind = "NumericColumn" if numeric else "_DenseColumn"
            raise errors.WrongType(
                f"Weight column must be either a string or {kind}. Given type: {type(column)}."
            )
        weights = tf_compat.dense_values(column, dict(features))
        if not (weights.dtype.is_floating or weights.dtype.is_integer):
            raise errors.InvalidInput(
                f"Weight column should be castable to float. Given dtype: {weights.dtype}."
            )
        weights = tf.cast(weights, name="weights", dtype=tf.float32)
        if tf.executing_eagerly():
            return _eager_weights(weights, logits, per_logit)
        return _graph_weights(weights, logits, per_logit, scope)


def checked_losses(
    loss_fn: Callable[..., Tensor], labels: Tensor, logits: Tensor, features: Nest, width: int
) -> Tensor:
    optional = {"features": features} if "features" in argument_names(loss_fn) else {}
    with tf.name_scope(None, "call_loss_fn", [labels, logits, *tf.nest.flatten(features)]):
        losses = loss_fn(labels=labels, logits=logits, **optional)
        message = f"loss_fn must return Tensor of shape [D0, D1, ... DN, {width}]. "
        if tf.executing_eagerly():
            expected = [*logits.shape.as_list()[:-1], width]
            if losses.shape.as_list() != expected:
                raise errors.InvalidInput(
                    f"{message}logits_shape: {logits.shape} loss_shape: {losses.shape}"
                )
            return losses
        shape = tf.shape(losses, name="loss_shape")
        logits_shape = tf.shape(logits, name="logits_shape")
        expected = tf.concat([logits_shape[:-1], [width]], axis=0, name="expected_loss_shape")
        fits = tf.Assert(
            tf.reduce_all(tf.equal(shape, expected)),
            data=[message, "logits_shape: ", logits_shape, "loss_shape: ", shape],
            name="check_loss_shape",
        )
        return _behind(fits, losses)


def checked_range(
    labels: Tensor, n_classes: int, message: str | None = None, scope: str = "check_label_range"
) -> Tensor:
    with tf.name_scope(None, scope, (labels,)):
        if tf.executing_eagerly():
            if not tf.reduce_all(tf.less_equal(labels, n_classes - 1)):
                raise errors.InvalidInput(message or f"Labels must be <= {n_classes} - 1.")
            if not tf.reduce_all(tf.greater_equal(labels, 0)):
                raise errors.InvalidInput(message or "Labels must be >= 0.")
            return labels
        largest = tf.convert_to_tensor(n_classes - 1, dtype=labels.dtype)
        checks = (
            tf.debugging.assert_less_equal(
                labels, largest, message=message or "Labels must be <= n_classes - 1"
            ),
            tf.debugging.assert_non_negative(labels, message=message or "Labels must be >= 0"),
        )
        return _behind(checks, labels)


def _behind(checks: Op | tuple[Op, ...], value: Tensor, name: str | None = None) -> Tensor:
    checks = checks if isinstance(checks, tuple) else (checks,)
    with tf.control_dependencies(checks):
        return tf.identity(value, name=name)


def _has_one_axis_less(tensor: Tensor, logits: Tensor) -> bool:
    ranks = tensor.shape.rank, tf.convert_to_tensor(logits).shape.rank
    return None not in ranks and ranks[0] == ranks[1] - 1


def _check_rank(name: str, tensor: Tensor) -> None:
    if tensor.shape.rank < 2:
        raise errors.InvalidInput(
            f"{name} must have rank at least 2, with a batch and a last dimension. Received rank "
            f"{tensor.shape.rank}, shape {tensor.shape}."
        )


def _check_width(logits: Tensor, width: int) -> None:
    if isinstance(width, int) and logits.shape[-1] != width:
        raise errors.InvalidInput(
            f"{_LOGITS_SHAPE}, got {logits.shape}, but the head has {width} logits."
        )


def _check_label_width(labels: Tensor, width: int) -> None:
    received = None if labels.shape.rank is None else labels.shape[-1]
    if received is not None and received != width:
        raise errors.InvalidInput(
            f"Mismatched label shape. Expected labels dimension={width}.  Received {received}. "
            "Check the n_classes or label_dimension of the head (labels are ids, not one-hot "
            "vectors), and the shape of the labels."
        )


def _weight_shapes(per_logit: bool) -> str:
    message = "weights shape must be [D0, D1, ... DN], [D0, D1, ... DN, 1]"
    return f"{message} or [D0, D1, ... DN, logits_dimension]" if per_logit else message


def _eager_weights(weights: Tensor, logits: Tensor, per_logit: bool) -> Tensor:
    received, of_logits = weights.shape.as_list(), logits.shape.as_list()
    allowed = [[*of_logits[:-1], 1], of_logits] if per_logit else [[*of_logits[:-1], 1]]
    is_short = _has_one_axis_less(weights, logits)
    if received not in ([of_logits[:-1]] if is_short else allowed):
        raise errors.InvalidInput(
            f"{_weight_shapes(per_logit)}, logits_shape: {of_logits}. weights_shape: {received}."
        )
    return tf.expand_dims(weights, -1) if is_short else weights


def _graph_weights(weights: Tensor, logits: Tensor, per_logit: bool, scope: str) -> Tensor:
    shape = tf.shape(weights, name="weights_shape")
    of_logits = tf.shape(logits, name="logits_shape")
    message = _weight_shapes(per_logit)
    data = ["logits_shape: ", of_logits, "weights_shape: ", shape]
    is_short = _has_one_axis_less(weights, logits)
    wanted = of_logits[:-1] if is_short else tf.concat([of_logits[:-1], [1]], axis=0)
    if per_logit and not is_short:
        alike = (tf.reduce_all(tf.equal(each, shape)) for each in (of_logits, wanted))
        fits = tf.Assert(tf.reduce_any(list(alike)), data=[message, *data])
    else:
        fits = tf.debugging.assert_equal(wanted, shape, message=message, data=data)
    if not is_short:
        return _behind(fits, weights, scope)
    with tf.control_dependencies([fits]):
        return tf.expand_dims(weights, -1, name=scope)
