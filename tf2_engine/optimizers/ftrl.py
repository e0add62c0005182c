"""Follow the regularized leader."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import (
    NOT_NEGATIVE,
    NOT_POSITIVE,
    Optimizer,
    Slots,
    Updated,
    optimization_barrier,
    power,
    setting,
)
from tf2_engine.types import Tensor, TensorLike


@dataclass(frozen=True)
class FTRL(Optimizer):
    """Follow the regularized leader, as the TPU applies it.

    With p = -learning_rate_power, a' = a + g^2, and clip(z) = z limited to -l1 .. l1:

        z <- z + g - (a'^p - a^p) * w / lr
        w <- (clip(z) - z) / ((a'^p + beta) / lr + 2 * l2)
        a <- a'

    With `multiply_linear_by_learning_rate`, the slot z and l1 are multiplied by lr, so a rate of 0
    is possible:

        z <- z + lr * g - (a'^p - a^p) * w
        w <- (clip(z) - z) / (a'^p + beta + 2 * lr * l2)      clip at -lr * l1 .. lr * l1
        a <- a'

    A row whose divisor is 0 becomes 0. (This is only possible if the accumulator is 0.)

    Slots:
        accumulators: a, starts at `initial_accumulator_value`, which may be 0.
        linears: z, starts at 0.

    Attributes:
        allow_zero_accumulator: sent to the device, which always allows zero; has no other effect.

    Unlike in tf.keras, beta is added to the power a'^p, and not divided by 2 * lr.

    Reference: McMahan et al., 2013, algorithm 1; TensorFlow's tpu_embedding_base_test.py.
    """

    learning_rate_power: float = setting(-0.5, NOT_POSITIVE, "lr_power")
    l1_regularization_strength: float = setting(0.0, NOT_NEGATIVE, "l1")
    l2_regularization_strength: float = setting(0.0, NOT_NEGATIVE, "l2")
    beta: float = setting(0.0, NOT_NEGATIVE, "beta")
    initial_accumulator_value: float = setting(0.1, NOT_NEGATIVE, slot="accumulators")
    multiply_linear_by_learning_rate: bool = setting(False, None, "multiply_linear_by_lr")
    allow_zero_accumulator: bool = setting(False, None, "allow_zero_accumulator")

    op_name = "FTRL"
    proto_field = "ftrl"
    slot_names = ("accumulators", "linears")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(
            "learning_rate",
            callable(self.learning_rate)
            or self.learning_rate != 0.0
            or self.multiply_linear_by_learning_rate,
            "is a divisor, so it must not be 0 unless multiply_linear_by_learning_rate=True",
        )

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a = slots["accumulators"] + tf.square(g)
        raised = power(a, -self.learning_rate_power)
        grown = raised - power(slots["accumulators"], -self.learning_rate_power)
        limit: TensorLike = np.float32(self.l1_regularization_strength)
        l2, beta = np.float32(2.0 * self.l2_regularization_strength), np.float32(self.beta)
        if self.multiply_linear_by_learning_rate:
            z = slots["linears"] + lr * g - grown * w
            limit = lr * limit
            divisor = raised + optimization_barrier(lr * l2 + beta)
        else:
            z = slots["linears"] + g - grown * w / lr
            divisor = (raised + beta) / lr + l2
        clipped = tf.maximum(tf.minimum(z, limit), -limit)
        w = tf.math.divide_no_nan(clipped - z, divisor)
        return w, {"accumulators": a, "linears": z}
