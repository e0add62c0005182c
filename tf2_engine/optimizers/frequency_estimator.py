"""Estimates how often each row is looked up, from the number of steps between lookups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2_engine.optimizers.optimizer import (
    FINITE,
    INSIDE_UNIT,
    POSITIVE,
    REQUIRED,
    Optimizer,
    Slots,
    Updated,
    one_minus,
    optimization_barrier,
    power,
    setting,
)
from tf2_engine.types import Tensor


@dataclass(frozen=True)
class FrequencyEstimator(Optimizer):
    """Estimates the number of steps D between two lookups of a row. The row's frequency is 1 / D.

        delta = step - last_hit_step
        c     = min(delta, max_delta)
        D    <- c                                 if delta >= outlier_threshold * D
        D    <- D * (1 - tau) + c * tau           otherwise
        last_hit_step <- step

    The learning rate must be a callable that returns the global step as float32 (exact up to 2^24).
    Every row in a training batch counts as looked up ("hit"). Its gradient is ignored, so pass the
    activation through tf.stop_gradient. The `dim` of a table must be 1. Rows start at `max_delta`
    unless the table has an initializer.

    Slots:
        last_hit_step: starts at 0.

    Attributes:
        tau: the weight of a new interval in the average D.
        max_delta: upper bound of D, in steps.
        weighted, weight_exponent: if `weighted`, a lookup returns (D / max_delta)^weight_exponent
            instead of D. `weighted` is not sent to the device.
    """

    tau: float = setting(REQUIRED, INSIDE_UNIT, "tau")
    max_delta: float = setting(REQUIRED, POSITIVE, "max_delta")
    outlier_threshold: float = setting(REQUIRED, POSITIVE, "outlier_threshold")
    weight_exponent: float = setting(REQUIRED, FINITE, "weight_exponent")
    weighted: bool = False

    op_name = "FrequencyEstimator"
    proto_field = "frequency_estimator"
    slot_names = ("last_hit_step",)
    only_dim = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(
            "learning_rate",
            callable(self.learning_rate),
            "must be a callable that returns the global step",
        )

    @property
    def row_initial_value(self) -> float | None:
        return self.max_delta

    @property
    def looks_up_rows(self) -> bool:
        return not self.weighted

    def activation(self, rows: Tensor) -> Tensor:
        if not self.weighted:
            return rows
        return power(rows / optimization_barrier(np.float32(self.max_delta)), self.weight_exponent)

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        delta = lr - slots["last_hit_step"]
        c = tf.minimum(delta, np.float32(self.max_delta))
        is_outlier = delta >= np.float32(self.outlier_threshold) * w
        mixed = w * one_minus(self.tau) + c * np.float32(self.tau)
        return tf.where(is_outlier, c, mixed), {"last_hit_step": tf.zeros_like(w) + lr}
