"""Gradient descent with momentum."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tf2_engine.optimizers import ranges
from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated
from tf2_engine.types import Tensor


@dataclasses.dataclass(frozen=True)
class Momentum(Optimizer):
    """Gradient descent with momentum, by the CPU kernel to which the TPU's proto refers.

        m <- momentum * m + g
        w <- w - lr * m
        w <- w - lr * (g + momentum * m)          use_nesterov, with the new m

    Slots:
        momenta: m, starts at 0.

    Unlike tf.keras the rate is not inside m: a change of the rate acts on past gradients too.

    Reference: Sutskever et al., 2013; MomentumParameters in optimization_parameters.proto.
    """

    momentum: float = dataclasses.field(kw_only=True)
    use_nesterov: bool = False

    op_name: ClassVar[str] = "Momentum"
    proto_field: ClassVar[str] = "momentum"
    slot_names: ClassVar[tuple[str, ...]] = ("momenta",)
    allowed: ClassVar[ranges.Ranges] = {"momentum": ranges.FRACTION}

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        mu = np.float32(self.momentum)
        m = mu * slots["momenta"] + g
        step = g + mu * m if self.use_nesterov else m
        return w - lr * step, {"momenta": m}

    def proto_fields(self) -> dict[str, float | bool]:
        return {"momentum": self.momentum, "use_nesterov": self.use_nesterov}
