"""Pooling of images: the mean or the largest value of each window."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from estimator_bridge.run.tf1.contrib.arg_scopes import add_arg_scope
from estimator_bridge.run.tf1.contrib.layer_variables import Sizes, collect_named_outputs
from tf2_engine.types import Tensor, TensorLike


def _of_dims(
    dims: int, name: str, function: Callable[..., Tensor], what: str
) -> Callable[..., Tensor]:
    """Returns a layer that pools windows of images of one rank.

    Args:
        name: of the layer; in scopes it is written without underscores, as "MaxPool2D".
        function: TensorFlow's.
        what: it returns, for the documentation.
    """
    default_format = "NHWC" if dims == 2 else "NDHWC"
    default_scope = "".join(part.capitalize() for part in name.split("_"))
    default_scope = f"{default_scope[:-1]}D"

    def pool(
        inputs: TensorLike,
        kernel_size: Sizes,
        stride: Sizes = 2,
        padding: str = "VALID",
        data_format: str = default_format,
        outputs_collections: str | None = None,
        scope: str | None = None,
    ) -> Tensor:
        with tf.name_scope(scope, default_scope, [inputs]) as opened:
            outputs = function(
                tf.convert_to_tensor(inputs),
                kernel_size,
                stride,
                padding.upper(),
                data_format=data_format,
            )
            return collect_named_outputs(outputs_collections, opened, outputs)

    sizes = "height, width" if dims == 2 else "depth, height, width"
    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"Returns {what} of each window of [batch, {sizes}, channels]."
    return add_arg_scope(pool)


avg_pool2d = _of_dims(2, "avg_pool2d", tf.nn.avg_pool2d, "the mean")
avg_pool3d = _of_dims(3, "avg_pool3d", tf.nn.avg_pool3d, "the mean")
max_pool2d = _of_dims(2, "max_pool2d", tf.nn.max_pool2d, "the largest value")
max_pool3d = _of_dims(3, "max_pool3d", tf.nn.max_pool3d, "the largest value")
