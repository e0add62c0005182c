"""RMSProp with momentum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated, one_minus, root
from tf2_engine.optimizers.ranges import FRACTION, NOT_NEGATIVE, setting
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """RMSProp with momentum, as in the CPU kernel to which the TPU's proto refers.

        ms  <- rho * ms + (1 - rho) * g^2
        mom <- momentum * mom + lr * g / sqrt(ms + epsilon)
        w   <- w - mom

    If epsilon is 0, a row becomes NaN if all its gradients so far are zero.

    Slots:
        ms: the running mean of squares. It starts at 0, as in TPUEstimator. (In
            tf.compat.v1.train.RMSPropOptimizer it starts at 1.)
        mom: starts at 0.

    Reference: Tieleman and Hinton, 2012; RmsPropParameters in optimization_parameters.proto.
    """

    rho: float = setting(0.9, FRACTION, "rho")
    momentum: float = setting(0.0, FRACTION, "momentum")
    epsilon: float = setting(1e-7, NOT_NEGATIVE, "epsilon")

    op_name = "RMSProp"
    proto_field = "rms_prop"
    slot_names = ("ms", "mom")

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        rho, mu = np.float32(self.rho), np.float32(self.momentum)
        ms = rho * slots["ms"] + one_minus(self.rho) * tf.square(g)
        mom = mu * slots["mom"] + lr * g / root(ms + np.float32(self.epsilon))
        return w - mom, {"ms": ms, "mom": mom}
