"""Simulated quantization: lookups round rows as if they were stored with few bits."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import tensorflow as tf

from tf2_engine import errors
from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.types import Tensor


@dataclasses.dataclass(frozen=True)
class Quantization:
    """Rounds looked-up embeddings to the nearest of `num_buckets` evenly spaced values.

        q = (upper - lower) / (num_buckets - 1)
        x <- floor((clip(x, lower, upper) - lower) / q + 0.5) * q + lower

    Each row is rounded before the combiner is applied. Tables stay float32 and are not rounded. The
    gradient is computed as if there were no rounding.

    Attributes:
        num_buckets: at least 2.
        lower, upper: the lowest and the highest value.

    Raises:
        InvalidSpec: a setting is out of range; the message has its name and value.

    Reference: SimulatedQuantization in optimization_parameters.proto.
    """

    num_buckets: int
    lower: float
    upper: float

    def __post_init__(self) -> None:
        number = self.num_buckets
        if isinstance(number, bool) or not isinstance(number, int) or number < 2:
            raise errors.InvalidSpec(
                f"Quantization: `num_buckets` must be an int of at least 2, got {number!r}."
            )
        # The device stores both limits as float32, which may make them equal.
        if not math.isfinite(self.upper - self.lower) or not np.float32(self.lower) < np.float32(
            self.upper
        ):
            raise errors.InvalidSpec(
                f"Quantization: `lower` must be below `upper`, both finite, got {self.lower!r} "
                f"and {self.upper!r}."
            )

    def __call__(self, rows: Tensor) -> Tensor:
        lower, upper = np.float32(self.lower), np.float32(self.upper)
        quantum = optimization_barrier((upper - lower) / np.float32(self.num_buckets - 1))
        low = optimization_barrier(lower)
        clipped = tf.minimum(tf.maximum(rows, low), optimization_barrier(upper))
        return tf.floor((clipped - low) / quantum + np.float32(0.5)) * quantum + low
