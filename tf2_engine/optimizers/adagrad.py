"""Adagrad."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from tf2_engine.optimizers import ranges
from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated, root
from tf2_engine.types import Tensor


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
    slot_starts: ClassVar[Mapping[str, str]] = {"accumulators": "initial_accumulator_value"}
    allowed: ClassVar[ranges.Ranges] = {"initial_accumulator_value": ranges.POSITIVE}

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a = slots["accumulators"] + tf.square(g)
        return w - lr * g / root(a), {"accumulators": a}
