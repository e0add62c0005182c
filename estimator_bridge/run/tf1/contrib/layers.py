"""Layers with variables: fully connected and convolutional ones, biases; and plain functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.run.tf1.contrib.arg_scopes import add_arg_scope
from estimator_bridge.run.tf1.contrib.initializers import xavier_initializer
from estimator_bridge.run.tf1.contrib.layer_variables import (
    Activation,
    collect_named_outputs,
    layer_of,
)
from tf2_engine.types import Nest, Object, Tensor, TensorLike


@add_arg_scope
def fully_connected(
    inputs: TensorLike,
    num_outputs: int,
    activation_fn: Activation | None = tf.nn.relu,
    normalizer_fn: Callable[..., Tensor] | None = None,
    normalizer_params: Mapping[str, Object] | None = None,
    weights_initializer: Object = xavier_initializer(),  # noqa: B008 - a pure function
    weights_regularizer: Object = None,
    biases_initializer: Object = tf.zeros_initializer(),  # noqa: B008
    biases_regularizer: Object = None,
    reuse: bool | None = None,
    variables_collections: Nest = None,
    outputs_collections: str | None = None,
    trainable: bool = True,
    scope: Object = None,
) -> Tensor:
    """Multiplies by a matrix: activation(x w + b); of higher ranks the last axis.

    Args:
        inputs: [..., size]; the size is known.
        num_outputs: the last size of the outputs.
        normalizer_fn: called with the product and `normalizer_params` in the place of biases.
        biases_initializer: None leaves the biases out.
        scope: of the variables `weights` and `biases`; None is "fully_connected".

    Raises:
        InvalidInput: `num_outputs` is no number, or the size of the inputs is not known.
    """
    if not isinstance(num_outputs, int) and getattr(num_outputs, "__index__", None) is None:
        raise errors.InvalidInput(
            f"fully_connected: `num_outputs` must be an int, got {num_outputs!r}."
        )
    with layer_of(locals(), "fully_connected") as layer:
        rank = layer.inputs.shape.rank
        size = None if not rank else layer.inputs.shape.as_list()[-1]
        if size is None:
            raise errors.InvalidInput(
                "fully_connected: the last size of the inputs must be known, got "
                f"{layer.inputs.shape}."
            )
        shape = [size, int(num_outputs)]
        weights = layer.variable("weights", shape, weights_initializer, weights_regularizer)
        if rank == 2:
            outputs = tf.matmul(layer.inputs, weights)
        else:
            outputs = tf.tensordot(layer.inputs, weights, [[rank - 1], [0]])
        return layer.with_biases(outputs, int(num_outputs))


linear = functools.partial(fully_connected, activation_fn=None)
relu = functools.partial(fully_connected, activation_fn=tf.nn.relu)
relu6 = functools.partial(fully_connected, activation_fn=tf.nn.relu6)


@add_arg_scope
def bias_add(
    inputs: TensorLike,
    activation_fn: Activation | None = None,
    initializer: Object = tf.zeros_initializer(),  # noqa: B008
    regularizer: Object = None,
    reuse: bool | None = None,
    variables_collections: Nest = None,
    outputs_collections: str | None = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Object = None,
) -> Tensor:
    """Adds a bias to each channel; the variable is `BiasAdd/biases`."""
    with layer_of(locals(), "BiasAdd") as layer:
        sizes = layer.inputs.shape.as_list()
        channels = sizes[1 if data_format.startswith("NC") else -1]
        biases = layer.variable("biases", [channels], initializer, regularizer)
        return layer.finished(tf.nn.bias_add(layer.inputs, biases, data_format=data_format))


@add_arg_scope
def dropout(
    inputs: TensorLike,
    keep_prob: float = 0.5,
    noise_shape: Object = None,
    is_training: Object = True,
    outputs_collections: str | None = None,
    scope: Object = None,
    seed: int | None = None,
) -> Tensor:
    """Sets elements to zero with the probability 1 - keep_prob, and divides others by keep_prob.

    Args:
        is_training: a bool, or a tensor of one; False returns the inputs.
    """
    with tf.variable_scope(scope, "Dropout", [inputs]) as opened:
        inputs = tf.convert_to_tensor(inputs)

        def dropped() -> Tensor:
            return tf.nn.dropout(inputs, noise_shape=noise_shape, seed=seed, rate=1 - keep_prob)

        known = tf.get_static_value(tf.convert_to_tensor(is_training))
        if known is None:
            outputs = tf.cond(is_training, dropped, lambda: tf.identity(inputs))
        else:
            outputs = dropped() if known else tf.identity(inputs)
        return collect_named_outputs(outputs_collections, opened.original_name_scope, outputs)


@add_arg_scope
def flatten(
    inputs: TensorLike, outputs_collections: str | None = None, scope: str | None = None
) -> Tensor:
    """Returns [batch, everything else] of [batch, ...]."""
    with tf.name_scope(scope, "Flatten", [inputs]) as name:
        inputs = tf.convert_to_tensor(inputs)
        sizes = inputs.shape.as_list()[1:]
        size = -1 if None in sizes else math.prod(sizes)
        batch = inputs.shape.as_list()[0]
        if batch is None and size == -1:
            batch = tf.shape(inputs)[0]
        outputs = tf.reshape(inputs, [-1 if batch is None else batch, size])
        return collect_named_outputs(outputs_collections, name, outputs)


@add_arg_scope
def one_hot_encoding(
    labels: TensorLike,
    num_classes: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    outputs_collections: str | None = None,
    scope: str | None = None,
) -> Tensor:
    """Returns [..., num_classes] float32 of [...] int labels."""
    with tf.name_scope(scope, "OneHotEncoding", [labels, num_classes]) as name:
        labels = tf.convert_to_tensor(labels)
        labels = tf.cast(labels, tf.int64) if labels.dtype == tf.int32 else labels
        outputs = tf.one_hot(labels, num_classes, on_value=on_value, off_value=off_value)
        return collect_named_outputs(outputs_collections, name, outputs)


def softmax(logits: TensorLike, scope: str | None = None) -> Tensor:
    """Returns the softmax over the last axis of logits of any rank."""
    with tf.variable_scope(scope, "softmax", [logits]):
        return tf.nn.softmax(logits)


@add_arg_scope
def unit_norm(
    inputs: TensorLike, dim: int, epsilon: float = 1e-7, scope: str | None = None
) -> Tensor:
    """Divides by sqrt(epsilon + the sum of squares along an axis)."""
    with tf.name_scope(scope, "UnitNorm", [inputs]):
        inputs = tf.convert_to_tensor(inputs)
        squares = tf.reduce_sum(tf.square(inputs), dim, keepdims=True)
        return tf.div(inputs, tf.sqrt(epsilon + squares))
