"""RMSProp by the variance of the gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import Optimizer, one_minus, opaque, root


@dataclasses.dataclass(frozen=True)
class CenteredRMSProp(Optimizer):
    """RMSProp that divides by the variance, by the CPU kernel to which the TPU's proto refers.

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

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7

    op_name: ClassVar[str] = "CenteredRMSProp"
    proto_field: ClassVar[str] = "centered_rms_prop"
    slot_names: ClassVar[tuple[str, ...]] = ("ms", "mom", "mg")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rho", "momentum"):
            self._require(name, 0.0 <= getattr(self, name) <= 1.0, "must be in [0, 1]")
        self._require("epsilon", self.epsilon > 0.0, "must be positive")

    def update(
        self, w: Any, slots: Mapping[str, Any], g: Any, lr: Any
    ) -> tuple[Any, dict[str, Any]]:
        rho, mu = np.float32(self.rho), np.float32(self.momentum)
        ms = rho * slots["ms"] + one_minus(self.rho) * tf.square(g)
        mg = rho * slots["mg"] + one_minus(self.rho) * g
        variance = opaque(ms - tf.square(mg))
        mom = mu * slots["mom"] + lr * g / root(variance + np.float32(self.epsilon))
        return w - mom, {"ms": ms, "mom": mom, "mg": mg}

    def proto_fields(self) -> dict[str, Any]:
        return {"rho": self.rho, "momentum": self.momentum, "epsilon": self.epsilon}
