"""Adagrad with momentum."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers import ranges
from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated, one_minus, power
from tf2_engine.types import Tensor


@dataclasses.dataclass(frozen=True)
class AdagradMomentum(Optimizer):
    """Adagrad whose scaled gradient goes through momentum, as the TPU applies it.

        a <- a + g^2                              beta2 of 1
        a <- beta2 * a + (1 - beta2) * g^2        otherwise
        s  = g * (a + epsilon)^(-1 / exponent)
        m <- momentum * m + s
        w <- w - lr * m
        w <- w - lr * (momentum * m + s)          use_nesterov, with the new m

    Slots:
        accumulators: a, starts at 0.
        momenta: m, starts at 0.

    The comment of the proto multiplies by g outside of the momentum; TensorFlow's own tests and
    the SparseCore's kernel, which are followed here, do it inside.

    Reference: AdagradMomentumParameters in optimization_parameters.proto; the reference in
    TensorFlow's tpu_embedding_base_test.py.
    """

    momentum: float = 0.0
    use_nesterov: bool = False
    exponent: float = 2.0
    beta2: float = 1.0
    epsilon: float = 1e-10

    op_name: ClassVar[str] = "AdagradMomentum"
    proto_field: ClassVar[str] = "adagrad_momentum"
    slot_names: ClassVar[tuple[str, ...]] = ("accumulators", "momenta")
    allowed: ClassVar[ranges.Ranges] = {
        "momentum": ranges.FRACTION,
        "beta2": ranges.FRACTION,
        "exponent": ranges.POSITIVE,
        "epsilon": ranges.POSITIVE,
    }

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

    def proto_fields(self) -> dict[str, float | bool]:
        return {
            "momentum": self.momentum,
            "use_nesterov": self.use_nesterov,
            "exponent": self.exponent,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
        }
