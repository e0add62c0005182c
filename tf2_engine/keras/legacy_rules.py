"""Update rules of `tf.keras.optimizers.legacy` that the engine's optimizers do not have."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import Slots, Updated, one_minus, root
from tf2_engine.types import Rate, Tensor


@dataclasses.dataclass(frozen=True)
class KerasRMSProp:
    """The rule of `tf.keras.optimizers.legacy.RMSprop` without momentum.

        rms <- rho * rms + (1 - rho) * g^2
        w   <- w - lr * g / (sqrt(rms) + epsilon)

    Unlike in `tf2_engine.RMSProp` and later Keras optimizers, epsilon is added to the square root,
    and the running means of all rows decay.

    Slots:
        ms: the running mean of squares, starts at 0.

    Reference: Tieleman and Hinton, 2012.
    """

    learning_rate: Rate = 0.001
    rho: float = 0.9
    epsilon: float = 1e-7

    slot_names: ClassVar[tuple[str, ...]] = ("ms",)
    updates_all_rows: ClassVar[bool] = True

    def slot_initial_values(self) -> dict[str, float]:
        return {"ms": 0.0}

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        ms = np.float32(self.rho) * slots["ms"] + one_minus(self.rho) * tf.square(g)
        return w - lr * g / (root(ms) + np.float32(self.epsilon)), {"ms": ms}


@dataclasses.dataclass(frozen=True)
class KerasMomentum:
    """Gradient descent with momentum, as in `tf.keras.optimizers.legacy.SGD`.

        m <- momentum * m - lr * g
        w <- w + m
        w <- w + momentum * m - lr * g            nesterov, with the new m

    Unlike in `tf2_engine.Momentum`, the rate is part of m. Unlike in later Keras optimizers, only
    the rows of the batch change.

    Slots:
        momenta: m, starts at 0.

    Reference: Sutskever et al., 2013.
    """

    learning_rate: Rate = 0.01
    momentum: float = 0.0
    nesterov: bool = False

    slot_names: ClassVar[tuple[str, ...]] = ("momenta",)
    updates_all_rows: ClassVar[bool] = False

    def slot_initial_values(self) -> dict[str, float]:
        return {"momenta": 0.0}

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        mu = np.float32(self.momentum)
        m = mu * slots["momenta"] - lr * g
        return w + (mu * m - lr * g if self.nesterov else m), {"momenta": m}
