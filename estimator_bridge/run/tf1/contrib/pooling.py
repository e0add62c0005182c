"""Pooling of images: the mean or the largest value of each window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.run.tf1.contrib.arg_scopes import add_arg_scope
from estimator_bridge.run.tf1.contrib.layer_variables import collect_named_outputs
from tf2_engine.types import Tensor, TensorLike

Sizes = int | Sequence[int]


@add_arg_scope
def avg_pool2d(
    inputs: TensorLike,
    kernel_size: Sizes,
    stride: Sizes = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: str | None = None,
    scope: str | None = None,
) -> Tensor:
    """Returns the mean of each window of [batch, height, width, channels]."""
    with tf.name_scope(scope, "AvgPool2D", [inputs]) as name:
        outputs = _pool(tf.nn.avg_pool2d, inputs, kernel_size, stride, padding, data_format)
        return collect_named_outputs(outputs_collections, name, outputs)


@add_arg_scope
def max_pool2d(
    inputs: TensorLike,
    kernel_size: Sizes,
    stride: Sizes = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: str | None = None,
    scope: str | None = None,
) -> Tensor:
    """Returns the largest value of each window of [batch, height, width, channels]."""
    with tf.name_scope(scope, "MaxPool2D", [inputs]) as name:
        outputs = _pool(tf.nn.max_pool2d, inputs, kernel_size, stride, padding, data_format)
        return collect_named_outputs(outputs_collections, name, outputs)


def _pool(
    function: Callable[..., Tensor],
    inputs: TensorLike,
    kernel_size: Sizes,
    stride: Sizes,
    padding: str,
    data_format: str,
) -> Tensor:
    return function(
        tf.convert_to_tensor(inputs), kernel_size, stride, padding.upper(), data_format=data_format
    )
