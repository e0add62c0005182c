"""Adagrad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from tf2_engine.optimizers.optimizer import Optimizer, Slots, Updated, root
from tf2_engine.optimizers.ranges import POSITIVE, setting
from tf2_engine.types import Op, Tensor, Variable


@dataclass(frozen=True)
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

    initial_accumulator_value: float = setting(0.1, POSITIVE, slot="accumulators")

    op_name = "Adagrad"
    proto_field = "adagrad"
    slot_names = ("accumulators",)

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a = slots["accumulators"] + tf.square(g)
        return w - lr * g / root(a), {"accumulators": a}

    def update_rows(
        self, w: Variable, slots: Mapping[str, Variable], rows: Tensor, g: Tensor, lr: Tensor
    ) -> list[Op]:
        # The op computes w - lr * g / (sqrt(a) + epsilon). With an epsilon of 0 the result is the
        # same.
        update = tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=w.handle,
            accum=slots["accumulators"].handle,
            lr=lr,
            epsilon=0.0,
            grad=g,
            indices=rows,
            use_locking=True,
        )
        return [update]
