"""Convolutional layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.run.tf1.contrib.arg_scopes import add_arg_scope
from estimator_bridge.run.tf1.contrib.initializers import xavier_initializer
from estimator_bridge.run.tf1.contrib.layer_variables import Activation, Sizes, layer_of
from tf2_engine.types import Nest, Object, Tensor, TensorLike

_CHANNELS_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


@add_arg_scope
def convolution(
    inputs: TensorLike,
    num_outputs: int,
    kernel_size: Sizes,
    stride: Sizes = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Sizes = 1,
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
    conv_dims: int | None = None,
) -> Tensor:
    """Convolves in one, two or three dimensions: activation(x * w + b).

    Args:
        inputs: [batch, ..., channels], or [batch, channels, ...] for a `data_format` of "NC...".
        rate: of an atrous convolution; not together with a stride.
        normalizer_fn: called with the convolution and `normalizer_params` in the place of biases.
        scope: of the variables `weights`, [*kernel_size, in, out], and `biases`; None is "Conv".
        conv_dims: the number of dimensions that is asked for.

    Raises:
        InvalidInput: the inputs have another rank, or their channels are not known.
    """
    with layer_of(locals(), "Conv") as layer:
        dims, kind, channels = _layout(layer.inputs, data_format, conv_dims)
        shape = [*_sizes(kernel_size, dims), channels, num_outputs]
        weights = layer.variable("weights", shape, weights_initializer, weights_regularizer)
        outputs = tf.nn.convolution(
            layer.inputs,
            weights,
            padding=padding,
            strides=_sizes(stride, dims),
            dilation_rate=_sizes(rate, dims),
            data_format=kind,
        )
        return layer.with_biases(outputs, num_outputs, kind)


def _transposed(
    inputs: TensorLike,
    num_outputs: int,
    kernel_size: Sizes,
    stride: Sizes = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    activation_fn: Activation | None = tf.nn.relu,
    normalizer_fn: Callable[..., Tensor] | None = None,
    normalizer_params: Mapping[str, Object] | None = None,
    weights_initializer: Object = xavier_initializer(),  # noqa: B008
    weights_regularizer: Object = None,
    biases_initializer: Object = tf.zeros_initializer(),  # noqa: B008
    biases_regularizer: Object = None,
    reuse: bool | None = None,
    variables_collections: Nest = None,
    outputs_collections: str | None = None,
    trainable: bool = True,
    scope: Object = None,
    *,
    conv_dims: int,
) -> Tensor:
    """Applies the gradient of a convolution, which makes images larger.

    The variables are `Conv2d_transpose/weights`, [height, width, out, in], and `biases`; in three
    dimensions `Conv3d_transpose`, [depth, height, width, out, in].
    """
    with layer_of(locals(), f"Conv{conv_dims}d_transpose") as layer:
        inputs = layer.inputs
        dims, kind, channels = _layout(inputs, data_format, conv_dims)
        kernel, strides = _sizes(kernel_size, dims), _sizes(stride, dims)
        shape = [*kernel, num_outputs, channels]
        weights = layer.variable("weights", shape, weights_initializer, weights_regularizer)
        first = 1 if kind.endswith("C") else 2
        static, dynamic = inputs.shape.as_list(), tf.shape(inputs)
        shape = [size or dynamic[axis] for axis, size in enumerate(static)]
        shape[kind.index("C")] = num_outputs
        for axis, (size, step) in enumerate(zip(kernel, strides, strict=True), first):
            # The size from which a convolution would have come.
            extra = max(size - step, 0) if padding.upper() == "VALID" else 0
            shape[axis] = shape[axis] * step + extra
        transpose = tf.nn.conv2d_transpose if dims == 2 else tf.nn.conv3d_transpose
        outputs = transpose(
            inputs, weights, shape, strides, padding=padding.upper(), data_format=kind
        )
        return layer.with_biases(outputs, num_outputs, kind)


def _of_dims(layer: Callable[..., Tensor], name: str, dims: int) -> Callable[..., Tensor]:
    """Returns a layer for inputs of one rank, with scopes of its own."""

    @functools.wraps(layer)
    def of_dims(*args: Object, **settings: Object) -> Tensor:
        return layer(*args, **{"conv_dims": dims, **settings})

    of_dims.__name__ = of_dims.__qualname__ = name
    return add_arg_scope(of_dims)


conv1d = _of_dims(convolution, "conv1d", 1)
conv2d = _of_dims(convolution, "conv2d", 2)
conv3d = _of_dims(convolution, "conv3d", 3)
conv2d_transpose = _of_dims(_transposed, "conv2d_transpose", 2)
conv3d_transpose = _of_dims(_transposed, "conv3d_transpose", 3)


@add_arg_scope
def separable_conv2d(
    inputs: TensorLike,
    num_outputs: int | None,
    kernel_size: Sizes,
    depth_multiplier: int = 1,
    stride: Sizes = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    rate: Sizes = 1,
    activation_fn: Activation | None = tf.nn.relu,
    normalizer_fn: Callable[..., Tensor] | None = None,
    normalizer_params: Mapping[str, Object] | None = None,
    weights_initializer: Object = xavier_initializer(),  # noqa: B008
    pointwise_initializer: Object = None,
    weights_regularizer: Object = None,
    biases_initializer: Object = tf.zeros_initializer(),  # noqa: B008
    biases_regularizer: Object = None,
    reuse: bool | None = None,
    variables_collections: Nest = None,
    outputs_collections: str | None = None,
    trainable: bool = True,
    scope: Object = None,
) -> Tensor:
    """Convolves each channel by itself, and then mixes the channels.

    The variables are `SeparableConv2d/depthwise_weights`, `pointwise_weights` and `biases`.

    Args:
        num_outputs: None leaves the mixing out.
        depth_multiplier: channels that each channel becomes.
    """
    with layer_of(locals(), "SeparableConv2d") as layer:
        _, kind, channels = _layout(layer.inputs, data_format, 2)
        shape = [*_sizes(kernel_size, 2), channels, depth_multiplier]
        depthwise = layer.variable(
            "depthwise_weights", shape, weights_initializer, weights_regularizer
        )
        strides = _sizes(stride, 2)
        last = kind.endswith("C")
        outputs = tf.nn.depthwise_conv2d(
            layer.inputs,
            depthwise,
            [1, *strides, 1] if last else [1, 1, *strides],
            padding,
            rate=_sizes(rate, 2),
            data_format=kind,
        )
        width = channels * depth_multiplier
        if num_outputs is not None:
            pointwise = layer.variable(
                "pointwise_weights",
                [1, 1, width, num_outputs],
                pointwise_initializer or weights_initializer,
                weights_regularizer,
            )
            outputs = tf.nn.conv2d(outputs, pointwise, 1, "VALID", data_format=kind)
            width = num_outputs
        return layer.with_biases(outputs, width, kind)


def _layout(inputs: Tensor, data_format: str | None, conv_dims: int | None) -> tuple[int, str, int]:
    """Returns the spatial dimensions of inputs, their data format, and the number of channels."""
    rank = inputs.shape.rank
    dims = None if rank is None else rank - 2
    if dims not in _CHANNELS_LAST or conv_dims not in (None, dims):
        wanted = f"rank {conv_dims + 2}" if conv_dims else "a rank of 3 to 5"
        raise errors.InvalidInput(
            f"A convolution needs inputs of {wanted}, [batch, ..., channels]; {inputs.name} has "
            f"the shape {inputs.shape}."
        )
    kind = data_format or _CHANNELS_LAST[dims]
    channels = inputs.shape.as_list()[kind.index("C")]
    if channels is None:
        raise errors.InvalidInput(
            f"A convolution needs a known number of channels; {inputs.name} has the shape "
            f"{inputs.shape}."
        )
    return dims, kind, channels


def _sizes(value: Sizes, dims: int) -> list[int]:
    return [value] * dims if isinstance(value, int) else [int(each) for each in value]
