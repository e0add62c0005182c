"""Initializers that keep the variance of a layer's outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Object, Tensor

_MODES = ("FAN_IN", "FAN_OUT", "FAN_AVG")

Initializer = Callable[..., Tensor]


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: Object = tf.float32,
) -> Initializer:
    """Returns an initializer of zero mean whose variance depends on the layer's size.

        n = fan in, fan out or their mean
        uniform:  U(-limit, limit),  limit = sqrt(3 factor / n)
        otherwise: a normal distribution, truncated at two standard deviations,
                  stddev = sqrt(1.3 factor / n)

    Unlike `tf.variance_scaling_initializer` it makes up for the truncation by 1.3, as TensorFlow
    1.15's contrib does. Reference: He et al., 2015.

    Args:
        factor: of the variance.
        mode: "FAN_IN", "FAN_OUT" or "FAN_AVG".
        uniform: the distribution.
        seed: of the random numbers.
        dtype: of the values; floating point.

    Raises:
        WrongType: the dtype is not of floating point, or there is no such mode.
    """
    if not tf.as_dtype(dtype).is_floating:
        raise errors.WrongType(f"`dtype`={dtype}: an initializer of a variance makes floats alone.")
    if mode not in _MODES:
        raise errors.WrongType(f"`mode`={mode!r}: it must be one of {', '.join(_MODES)}.")

    def initialize(
        shape: Sequence[int], dtype: Object = dtype, partition_info: Object = None
    ) -> Tensor:
        if not tf.as_dtype(dtype).is_floating:
            raise errors.WrongType(f"A variable of {dtype} cannot be initialized by a variance.")
        sizes = [int(size) for size in shape]
        if partition_info is not None:
            sizes = [int(size) for size in partition_info.full_shape]
        fans = {"FAN_IN": _fan(sizes, -2), "FAN_OUT": _fan(sizes, -1)}
        fans["FAN_AVG"] = (fans["FAN_IN"] + fans["FAN_OUT"]) / 2.0
        if uniform:
            limit = math.sqrt(3.0 * factor / fans[mode])
            return tf.random_uniform(shape, -limit, limit, dtype, seed=seed)
        stddev = math.sqrt(1.3 * factor / fans[mode])
        return tf.truncated_normal(shape, 0.0, stddev, dtype, seed=seed)

    return initialize


def xavier_initializer(
    uniform: bool = True, seed: int | None = None, dtype: Object = tf.float32
) -> Initializer:
    """Returns the initializer of Glorot and Bengio, 2010: U(-limit, limit), or normal.

    limit = sqrt(6 / (fan in + fan out))
    """
    return variance_scaling_initializer(1.0, "FAN_AVG", uniform, seed, dtype)


def _fan(sizes: Sequence[int], position: int) -> float:
    """Returns the inputs (-2) or outputs (-1) of a layer's unit, the receptive field included."""
    if not sizes:
        return 1.0
    fan = float(sizes[position] if len(sizes) > 1 else sizes[-1])
    return fan * math.prod(sizes[:-2])
