"""Adagrad with momentum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated, one_minus, power
from tf2_engine.optimizers.ranges import FRACTION, POSITIVE, setting
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class AdagradMomentum(Optimizer):
    """Adagrad with momentum of the scaled gradient, as the TPU applies it.

        a <- a + g^2                              beta2 of 1
        a <- beta2 * a + (1 - beta2) * g^2        otherwise
        s  = g * (a + epsilon)^(-1 / exponent)
        m <- momentum * m + s
        w <- w - lr * m
        w <- w - lr * (momentum * m + s)          use_nesterov, with the new m

    Slots:
        accumulators: a, starts at 0.
        momenta: m, starts at 0.

    In the proto's comment, the momentum is multiplied by g. Here g is a factor of s, as in
    TensorFlow's tests and the SparseCore kernel.

    Reference: AdagradMomentumParameters in optimization_parameters.proto; the reference in
    TensorFlow's tpu_embedding_base_test.py.
    """

    momentum: float = setting(0.0, FRACTION, "momentum")
    use_nesterov: bool = setting(False, None, "use_nesterov")
    exponent: float = setting(2.0, POSITIVE, "exponent")
    beta2: float = setting(1.0, FRACTION, "beta2")
    epsilon: float = setting(1e-10, POSITIVE, "epsilon")

    op_name = "AdagradMomentum"
    proto_field = "adagrad_momentum"
    slot_names = ("accumulators", "momenta")

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a, mu, beta2 = slots["accumulators"], np.float32(self.momentum), np.float32(self.beta2)
        if beta2 == 1.0:
            a = a + tf.square(g)
        else:
            a = beta2 * a + one_minus(self.beta2) * tf.square(g)
        s = g * power(a + np.float32(self.epsilon), np.float32(-1.0) / np.float32(self.exponent))
        m = mu * slots["momenta"] + s
        step = mu * m + s if self.use_nesterov else m
        return w - lr * step, {"accumulators": a, "momenta": m}
