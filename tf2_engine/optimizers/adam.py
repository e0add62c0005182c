"""Adam and Yogi."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2_engine import errors
from tf2_engine.optimizers.optimizer import (
    BELOW_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    Optimizer,
    Slots,
    Updated,
    one_minus,
    root,
    setting,
    shrink,
)
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam as the TPU applies it.

        m <- beta_1 * m + (1 - beta_1) * g
        v <- beta_2 * v + (1 - beta_2) * g^2
        w <- w - lr * m / sqrt(v + epsilon^2)      if sum_inside_sqrt
        w <- w - lr * m / (sqrt(v) + epsilon)      otherwise

    There is no bias correction. To add it, multiply a dynamic rate by sqrt(1 - beta_2^t) / (1 -
    beta_1^t). With `lazy_adam`, only the rows of the batch change. Otherwise every row changes in
    every step, which requires gradient accumulation.

    Slots:
        momenta: m, starts at 0.
        velocities: v, starts at 0.

    Reference: Kingma and Ba, 2014.
    """

    beta_1: float = setting(0.9, BELOW_ONE, "beta1")
    beta_2: float = setting(0.999, BELOW_ONE, "beta2")
    epsilon: float = setting(1e-7, POSITIVE, "epsilon")
    lazy_adam: bool = True
    sum_inside_sqrt: bool = setting(True, None, "use_sum_inside_sqrt")

    op_name = "ADAM"
    proto_field = "adam"
    slot_names = ("momenta", "velocities")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lazy_adam and not self.use_gradient_accumulation:
            raise errors.InvalidSpec(
                "`Adam(lazy_adam=False)` needs gradient accumulation, but "
                "use_gradient_accumulation=False. Set it to True, or keep lazy_adam=True."
            )

    @property
    def updates_all_rows(self) -> bool:
        return not self.lazy_adam

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        m = np.float32(self.beta_1) * slots["momenta"] + one_minus(self.beta_1) * g
        v = np.float32(self.beta_2) * slots["velocities"] + one_minus(self.beta_2) * tf.square(g)
        if self.sum_inside_sqrt:
            scale = root(v + np.square(np.float32(self.epsilon)))
        else:
            scale = root(v) + np.float32(self.epsilon)
        return w - lr * m / scale, {"momenta": m, "velocities": v}

    def proto_fields(self) -> dict[str, float]:
        return super().proto_fields() | {"use_non_lazy_adam": not self.lazy_adam}


@dataclass(frozen=True)
class ProximalYogi(Optimizer):
    """Yogi with proximal L1 and L2 terms. The TPU's own formula is not public.

        m   <- beta_1 * m + (1 - beta_1) * g
        v   <- v - (1 - beta_2) * sign(v - g^2) * g^2
        eta  = lr / (sqrt(v) + epsilon)
        w   <- w - eta * m
        w   <- sign(w) * max(|w| - eta * l1, 0) / (1 + eta * l2)

    This rule is inferred from the paper and the names of the settings, not confirmed on a device. A
    warning says so once per process. As in this engine's `Adam`, there is no bias correction. Only
    the rows of the batch change.

    Slots:
        v: starts at `initial_accumulator_value`.
        m: starts at 0.

    Reference: Zaheer et al., 2018; Duchi and Singer, 2009.
    """

    beta_1: float = setting(0.9, BELOW_ONE, "beta1")
    beta_2: float = setting(0.999, BELOW_ONE, "beta2")
    epsilon: float = setting(1e-3, POSITIVE, "epsilon")
    l1_regularization_strength: float = setting(0.0, NOT_NEGATIVE, "l1")
    l2_regularization_strength: float = setting(0.0, NOT_NEGATIVE, "l2")
    initial_accumulator_value: float = setting(1e-6, NOT_NEGATIVE, slot="v")

    op_name = "ProximalYogi"
    proto_field = "proximal_yogi"
    slot_names = ("v", "m")

    def __post_init__(self) -> None:
        super().__post_init__()
        warn_inferred()

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        square = tf.square(g)
        m = np.float32(self.beta_1) * slots["m"] + one_minus(self.beta_1) * g
        v = slots["v"] - tf.sign(slots["v"] - square) * (one_minus(self.beta_2) * square)
        eta = lr / (root(v) + np.float32(self.epsilon))
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return shrink(w - eta * m, eta, l1, l2), {"v": v, "m": m}


@functools.cache
def warn_inferred() -> None:
    warnings.warn(
        "`ProximalYogi`: the update rule is inferred from the paper (Zaheer et al., 2018), not "
        "confirmed on a device: a TPU may give different results.",
        # Points to the caller of the constructor.
        stacklevel=4,
    )
