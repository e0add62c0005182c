"""Yogi with a proximal step."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import Optimizer, one_minus, root, shrink


@dataclasses.dataclass(frozen=True)
class ProximalYogi(Optimizer):
    """Yogi with proximal L1 and L2 terms; the TPU's own formula is not public.

        m   <- beta_1 * m + (1 - beta_1) * g
        v   <- v - (1 - beta_2) * sign(v - g^2) * g^2
        eta  = lr / (sqrt(v) + epsilon)
        w   <- w - eta * m
        w   <- sign(w) * max(|w| - eta * l1, 0) / (1 + eta * l2)

    This is inferred from the paper and the names of the settings, and not confirmed on a device:
    the first one that is made warns of it.

    There is no bias correction: fold sqrt(1 - beta_2^t) / (1 - beta_1^t) into a dynamic rate.
    Only the rows of the batch move.

    Slots:
        v: starts at `initial_accumulator_value`.
        m: starts at 0.

    Reference: Zaheer et al., 2018; Duchi and Singer, 2009; ProximalYogiParameters in
    optimization_parameters.proto.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-3
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    initial_accumulator_value: float = 1e-6

    op_name: ClassVar[str] = "ProximalYogi"
    proto_field: ClassVar[str] = "proximal_yogi"
    slot_names: ClassVar[tuple[str, ...]] = ("v", "m")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta_1", "beta_2"):
            self._require(name, 0.0 <= getattr(self, name) < 1.0, "must be in [0, 1)")
        self._require("epsilon", self.epsilon > 0.0, "must be positive")
        for name in (
            "l1_regularization_strength",
            "l2_regularization_strength",
            "initial_accumulator_value",
        ):
            self._require(name, getattr(self, name) >= 0.0, "must be at least 0")
        warn_inferred()

    def slot_initial_values(self) -> dict[str, float]:
        return {"v": self.initial_accumulator_value, "m": 0.0}

    def update(
        self, w: Any, slots: Mapping[str, Any], g: Any, lr: Any
    ) -> tuple[Any, dict[str, Any]]:
        square = tf.square(g)
        m = np.float32(self.beta_1) * slots["m"] + one_minus(self.beta_1) * g
        v = slots["v"] - tf.sign(slots["v"] - square) * (one_minus(self.beta_2) * square)
        eta = lr / (root(v) + np.float32(self.epsilon))
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return shrink(w - eta * m, eta, l1, l2), {"v": v, "m": m}

    def proto_fields(self) -> dict[str, Any]:
        return {
            "l1": self.l1_regularization_strength,
            "l2": self.l2_regularization_strength,
            "beta1": self.beta_1,
            "beta2": self.beta_2,
            "epsilon": self.epsilon,
        }


@functools.cache
def warn_inferred() -> None:
    """Warns, once per process, that the rule is inferred."""
    warnings.warn(
        "`ProximalYogi`: the update rule is inferred from the paper (Zaheer et al., 2018), not "
        "confirmed on a device: a TPU may train to other numbers.",
        # The caller of the constructor, which calls __post_init__.
        stacklevel=4,
    )
