"""Adadelta."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated, one_minus, root
from tf2_engine.optimizers.ranges import FRACTION, POSITIVE, setting
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta, as in the CPU kernel to which the TPU's proto refers.

        a <- rho * a + (1 - rho) * g^2
        u  = g * sqrt(d + epsilon) / sqrt(a + epsilon)      with the old d
        d <- rho * d + (1 - rho) * u^2
        w <- w - lr * u

    Slots:
        accumulators: a, starts at 0.
        updates: d, starts at 0.

    Reference: Zeiler, 2012; AdadeltaParameters in optimization_parameters.proto.
    """

    rho: float = setting(0.95, FRACTION, "rho")
    epsilon: float = setting(1e-7, POSITIVE, "epsilon")

    op_name = "Adadelta"
    proto_field = "adadelta"
    slot_names = ("accumulators", "updates")

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        rho, epsilon = np.float32(self.rho), np.float32(self.epsilon)
        a = rho * slots["accumulators"] + one_minus(self.rho) * tf.square(g)
        u = g * root(slots["updates"] + epsilon) / root(a + epsilon)
        d = rho * slots["updates"] + one_minus(self.rho) * tf.square(u)
        return w - lr * u, {"accumulators": a, "updates": d}
