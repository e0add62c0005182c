"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent as the TPU applies it: `w <- w - lr * g`.

    There are no slots. Reference: StochasticGradientDescentParameters in
    optimization_parameters.proto.
    """

    op_name = "StochasticGradientDescent"
    proto_field = "stochastic_gradient_descent"

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        return w - lr * g, {}
