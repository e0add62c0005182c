"""Stochastic gradient descent."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated
from tf2_engine.types import Tensor


@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent as the TPU applies it: `w <- w - lr * g`.

    Has no slots. Reference: StochasticGradientDescentParameters in optimization_parameters.proto.
    """

    op_name: ClassVar[str] = "StochasticGradientDescent"
    proto_field: ClassVar[str] = "stochastic_gradient_descent"

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        return w - lr * g, {}
