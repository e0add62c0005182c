"""Stochastic gradient descent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from tf2_engine.optimizers.optimizer import Optimizer


@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent as the TPU applies it: `w <- w - lr * g`.

    Has no slots. Reference: StochasticGradientDescentParameters in optimization_parameters.proto.
    """

    op_name: ClassVar[str] = "StochasticGradientDescent"
    proto_field: ClassVar[str] = "stochastic_gradient_descent"

    def update(
        self, w: Any, slots: Mapping[str, Any], g: Any, lr: Any
    ) -> tuple[Any, dict[str, Any]]:
        return w - lr * g, {}
