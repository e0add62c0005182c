"""Adagrad with a proximal step."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated, root, shrink
from tf2_engine.optimizers.ranges import NOT_NEGATIVE, POSITIVE, setting
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class ProximalAdagrad(Optimizer):
    """Adagrad with proximal L1 and L2 terms, as in the CPU kernel to which the TPU's proto refers.

        a   <- a + g^2
        eta  = lr / sqrt(a)
        w   <- w - eta * g
        w   <- sign(w) * max(|w| - eta * l1, 0) / (1 + eta * l2)

    Slots:
        accumulators: a, starts at `initial_accumulator_value`, which must be positive.

    Reference: Duchi et al., 2011; Duchi and Singer, 2009; ProximalAdagradParameters in
    optimization_parameters.proto.
    """

    initial_accumulator_value: float = setting(0.1, POSITIVE, slot="accumulators")
    l1_regularization_strength: float = setting(0.0, NOT_NEGATIVE, "l1")
    l2_regularization_strength: float = setting(0.0, NOT_NEGATIVE, "l2")

    op_name = "ProximalAdagrad"
    proto_field = "proximal_adagrad"
    slot_names = ("accumulators",)

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a = slots["accumulators"] + tf.square(g)
        eta = lr / root(a)
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return shrink(w - eta * g, eta, l1, l2), {"accumulators": a}
