"""Adam without bias correction."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tf2_engine import errors
from tf2_engine.optimizers.optimizer import Optimizer, one_minus, root


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
    """Adam as the TPU applies it.

        m <- beta_1 * m + (1 - beta_1) * g
        v <- beta_2 * v + (1 - beta_2) * g^2
        w <- w - lr * m / sqrt(v + epsilon^2)      sum_inside_sqrt
        w <- w - lr * m / (sqrt(v) + epsilon)      otherwise

    There is no bias correction: fold sqrt(1 - beta_2^t) / (1 - beta_1^t) into a dynamic rate.
    With `lazy_adam` only the rows of the batch move; otherwise every row of the table moves every
    step, which needs gradient accumulation.

    Slots:
        momenta: m, starts at 0.
        velocities: v, starts at 0.

    Reference: Kingma and Ba, 2014; AdamParameters in optimization_parameters.proto.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    lazy_adam: bool = True
    sum_inside_sqrt: bool = True

    op_name: ClassVar[str] = "ADAM"
    proto_field: ClassVar[str] = "adam"
    slot_names: ClassVar[tuple[str, ...]] = ("momenta", "velocities")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta_1", "beta_2"):
            self._require(name, 0.0 <= getattr(self, name) < 1.0, "must be in [0, 1)")
        self._require("epsilon", self.epsilon > 0.0, "must be positive")
        if not self.lazy_adam and not self.use_gradient_accumulation:
            raise errors.InvalidSpec(
                "`Adam(lazy_adam=False)` needs gradient accumulation, but "
                "use_gradient_accumulation=False. Set it to True, or keep lazy_adam=True."
            )

    @property
    def updates_all_rows(self) -> bool:
        return not self.lazy_adam

    def update(
        self, w: Any, slots: Mapping[str, Any], g: Any, lr: Any
    ) -> tuple[Any, dict[str, Any]]:
        m = np.float32(self.beta_1) * slots["momenta"] + one_minus(self.beta_1) * g
        v = np.float32(self.beta_2) * slots["velocities"] + one_minus(self.beta_2) * tf.square(g)
        if self.sum_inside_sqrt:
            scale = root(v + np.square(np.float32(self.epsilon)))
        else:
            scale = root(v) + np.float32(self.epsilon)
        return w - lr * m / scale, {"momenta": m, "velocities": v}

    def proto_fields(self) -> dict[str, Any]:
        return {
            "beta1": self.beta_1,
            "beta2": self.beta_2,
            "epsilon": self.epsilon,
            "use_non_lazy_adam": not self.lazy_adam,
            "use_sum_inside_sqrt": self.sum_inside_sqrt,
        }
