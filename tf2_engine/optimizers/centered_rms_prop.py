"""RMSProp with the variance of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import (
    Optimizer,
    Slots,
    Updated,
    one_minus,
    optimization_barrier,
    root,
)
from tf2_engine.optimizers.ranges import FRACTION, POSITIVE, setting
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class CenteredRMSProp(Optimizer):
    """RMSProp that divides by the variance, as in the CPU kernel to which the TPU's proto refers.

        ms  <- rho * ms + (1 - rho) * g^2
        mg  <- rho * mg + (1 - rho) * g
        mom <- momentum * mom + lr * g / sqrt(ms - mg^2 + epsilon)
        w   <- w - mom

    Slots:
        ms: the running mean of squares, starts at 0.
        mom: starts at 0.
        mg: the running mean of gradients, starts at 0.

    Reference: Graves, 2013; CenteredRmsPropParameters in optimization_parameters.proto.
    """

    rho: float = setting(0.9, FRACTION, "rho")
    momentum: float = setting(0.0, FRACTION, "momentum")
    epsilon: float = setting(1e-7, POSITIVE, "epsilon")

    op_name = "CenteredRMSProp"
    proto_field = "centered_rms_prop"
    slot_names = ("ms", "mom", "mg")

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        rho, mu = np.float32(self.rho), np.float32(self.momentum)
        ms = rho * slots["ms"] + one_minus(self.rho) * tf.square(g)
        mg = rho * slots["mg"] + one_minus(self.rho) * g
        variance = optimization_barrier(ms - tf.square(mg))
        mom = mu * slots["mom"] + lr * g / root(variance + np.float32(self.epsilon))
        return w - mom, {"ms": ms, "mom": mom, "mg": mg}
