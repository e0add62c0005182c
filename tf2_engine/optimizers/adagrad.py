"""Adagrad."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from tf2_engine.optimizers.optimizer import Optimizer, root


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad as the TPU applies it.

        a <- a + g^2
        w <- w - lr * g / sqrt(a)

    Slots:
        accumulators: the running sum a; starts at `initial_accumulator_value`, which must be
            positive.

    Unlike tf.keras there is no epsilon.

    Reference: Duchi et al., 2011; AdagradParameters in optimization_parameters.proto.
    """

    initial_accumulator_value: float = 0.1

    op_name: ClassVar[str] = "Adagrad"
    proto_field: ClassVar[str] = "adagrad"
    slot_names: ClassVar[tuple[str, ...]] = ("accumulators",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(
            "initial_accumulator_value", self.initial_accumulator_value > 0, "must be positive"
        )

    def slot_initial_values(self) -> dict[str, float]:
        return {"accumulators": self.initial_accumulator_value}

    def update(
        self, w: Any, slots: Mapping[str, Any], g: Any, lr: Any
    ) -> tuple[Any, dict[str, Any]]:
        a = slots["accumulators"] + tf.square(g)
        return w - lr * g / root(a), {"accumulators": a}
