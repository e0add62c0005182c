"""RMSProp with momentum."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers import ranges
from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated, one_minus, root
from tf2_engine.types import Tensor


@dataclasses.dataclass(frozen=True)
class RMSProp(Optimizer):
    """RMSProp with momentum, by the CPU kernel to which the TPU's proto refers.

        ms  <- rho * ms + (1 - rho) * g^2
        mom <- momentum * mom + lr * g / sqrt(ms + epsilon)
        w   <- w - mom

    With an epsilon of 0 a zero gradient on a row that has seen no other gives NaN.

    Slots:
        ms: the running mean of squares, starts at 0, as in TPUEstimator; unlike
            tf.compat.v1.train.RMSPropOptimizer, where it starts at 1.
        mom: starts at 0.

    Reference: Tieleman and Hinton, 2012; RmsPropParameters in optimization_parameters.proto.
    """

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7

    op_name: ClassVar[str] = "RMSProp"
    proto_field: ClassVar[str] = "rms_prop"
    slot_names: ClassVar[tuple[str, ...]] = ("ms", "mom")
    allowed: ClassVar[ranges.Ranges] = {
        "rho": ranges.FRACTION,
        "momentum": ranges.FRACTION,
        "epsilon": ranges.NOT_NEGATIVE,
    }

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        rho, mu = np.float32(self.rho), np.float32(self.momentum)
        ms = rho * slots["ms"] + one_minus(self.rho) * tf.square(g)
        mom = mu * slots["mom"] + lr * g / root(ms + np.float32(self.epsilon))
        return w - mom, {"ms": ms, "mom": mom}

    def proto_fields(self) -> dict[str, float | bool]:
        return {"rho": self.rho, "momentum": self.momentum, "epsilon": self.epsilon}
