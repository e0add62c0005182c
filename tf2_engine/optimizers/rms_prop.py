"""Optimizers that divide by running means of squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Optimizer,
    Slots,
    Updated,
    one_minus,
    optimization_barrier,
    root,
    setting,
)
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """RMSProp with momentum, as in the CPU kernel to which the TPU's proto refers.

        ms  <- rho * ms + (1 - rho) * g^2
        mom <- momentum * mom + lr * g / sqrt(ms + epsilon)
        w   <- w - mom

    With epsilon 0, a row becomes NaN if all its gradients so far are zero.

    Slots:
        ms: the running mean of squares. It starts at 0, as in TPUEstimator. (In
            tf.compat.v1.train.RMSPropOptimizer it starts at 1.)
        mom: starts at 0.

    Reference: Tieleman and Hinton, 2012.
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


@dataclass(frozen=True)
class CenteredRMSProp(Optimizer):
    """RMSProp with the gradient's variance, as in the CPU kernel to which the TPU's proto refers.

        ms  <- rho * ms + (1 - rho) * g^2
        mg  <- rho * mg + (1 - rho) * g
        mom <- momentum * mom + lr * g / sqrt(ms - mg^2 + epsilon)
        w   <- w - mom

    Slots:
        ms: the running mean of squares, starts at 0.
        mom: starts at 0.
        mg: the running mean of gradients, starts at 0.

    Reference: Graves, 2013.
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

    Reference: Zeiler, 2012.
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
