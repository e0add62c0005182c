"""Adagrad with a proximal step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from tf2_engine.optimizers import ranges
from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated, root, shrink
from tf2_engine.types import Tensor


@dataclasses.dataclass(frozen=True)
class ProximalAdagrad(Optimizer):
    """Adagrad with proximal L1 and L2 terms, by the CPU kernel to which the TPU's proto refers.

        a   <- a + g^2
        eta  = lr / sqrt(a)
        w   <- w - eta * g
        w   <- sign(w) * max(|w| - eta * l1, 0) / (1 + eta * l2)

    Slots:
        accumulators: a, starts at `initial_accumulator_value`, which must be positive.

    Reference: Duchi et al., 2011; Duchi and Singer, 2009; ProximalAdagradParameters in
    optimization_parameters.proto.
    """

    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    op_name: ClassVar[str] = "ProximalAdagrad"
    proto_field: ClassVar[str] = "proximal_adagrad"
    slot_names: ClassVar[tuple[str, ...]] = ("accumulators",)
    slot_starts: ClassVar[Mapping[str, str]] = {"accumulators": "initial_accumulator_value"}
    allowed: ClassVar[ranges.Ranges] = {
        "initial_accumulator_value": ranges.POSITIVE,
        "l1_regularization_strength": ranges.NOT_NEGATIVE,
        "l2_regularization_strength": ranges.NOT_NEGATIVE,
    }

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a = slots["accumulators"] + tf.square(g)
        eta = lr / root(a)
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return shrink(w - eta * g, eta, l1, l2), {"accumulators": a}

    def proto_fields(self) -> dict[str, float | bool]:
        return {"l1": self.l1_regularization_strength, "l2": self.l2_regularization_strength}
