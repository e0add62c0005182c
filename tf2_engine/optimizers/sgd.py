"""Stochastic gradient descent, without and with momentum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tf2_engine.optimizers.optimizer import FRACTION, REQUIRED, Optimizer, Slots, Updated, setting
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent as the TPU applies it: `w <- w - lr * g`.

    There are no slots.
    """

    op_name = "StochasticGradientDescent"
    proto_field = "stochastic_gradient_descent"

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        return w - lr * g, {}


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Gradient descent with momentum, as in the CPU kernel to which the TPU's proto refers.

        m <- momentum * m + g
        w <- w - lr * (g + momentum * m)          if use_nesterov, with the new m
        w <- w - lr * m                           otherwise

    Slots:
        momenta: m, starts at 0.

    Unlike in tf.keras, m does not include the rate, so a change of the rate also applies to past
    gradients.

    Reference: Sutskever et al., 2013.
    """

    momentum: float = setting(REQUIRED, FRACTION, "momentum")
    use_nesterov: bool = setting(False, None, "use_nesterov")

    op_name = "Momentum"
    proto_field = "momentum"
    slot_names = ("momenta",)

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        mu = np.float32(self.momentum)
        m = mu * slots["momenta"] + g
        step = g + mu * m if self.use_nesterov else m
        return w - lr * step, {"momenta": m}
