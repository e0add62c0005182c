"""The update rules of SparseCores, for the optimizers that SparseCores support.

The formulas are those of the first TPU generations, but the order of operations, and hence the
rounding, differs: for instance, `(1 - beta) * g * g` is computed from left to right. FTRL does not
guard its division, so a row becomes NaN if its accumulator and its gradient are zero.

Source: the lowering of TensorFlow's XlaSparseDenseMatmulGradWith... ops
(core/tpu/kernels/sparse_core_ops_utils.cc, and the optimizers' files in the same folder).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2_engine import errors
from tf2_engine.optimizers import FTRL, SGD, Adagrad, AdagradMomentum, Adam, Optimizer
from tf2_engine.optimizers.optimizer import Slots, Updated, one_minus, optimization_barrier, power
from tf2_engine.types import Tensor, TensorLike

_HOST = "or use driver='host' with the first generation's arithmetic, which supports this."

_REFUSED: tuple[tuple[Callable[[Optimizer], bool], str], ...] = (
    (
        lambda optimizer: type(optimizer) not in _RULES,
        "SparseCores have no such optimizer. Use SGD, Adagrad, AdagradMomentum, Adam or FTRL, "
        + _HOST,
    ),
    (
        lambda optimizer: optimizer.clips_gradients,
        "SparseCores cannot clip gradients (clip_gradient_min, clip_gradient_max): the sum of a "
        "row's gradients exists only inside of the op. Drop the limits, " + _HOST,
    ),
    (
        lambda optimizer: bool(optimizer.weight_decay_factor),
        "SparseCores cannot decay weights (weight_decay_factor). Set it to None, " + _HOST,
    ),
    (
        lambda optimizer: not optimizer.use_gradient_accumulation,
        "SparseCores always accumulate gradients over the global batch "
        "(use_gradient_accumulation=False). Set it to True, " + _HOST,
    ),
    (
        lambda optimizer: optimizer.updates_all_rows,
        "SparseCores update only the rows of a batch (lazy_adam=False). Set it to True, " + _HOST,
    ),
    (
        lambda optimizer: getattr(optimizer, "initial_accumulator_value", 1.0) == 0.0,
        "with an accumulator of 0, the rules of SparseCores compute 0 / 0, which is NaN "
        "(initial_accumulator_value=0). Use a small positive number, " + _HOST,
    ),
)


def check(table: str, optimizer: Optimizer) -> None:
    for is_refused, reason in _REFUSED:
        if is_refused(optimizer):
            raise errors.InvalidSpec(
                f"Table {table!r}, optimizer {type(optimizer).__name__}: {reason}"
            )


def of_sparsecore(table: str, optimizer: Optimizer) -> Optimizer:
    check(table, optimizer)
    return _RULES[type(optimizer)](**vars(optimizer))


def without_dropped(optimizer: Optimizer) -> Optimizer:
    """Resets those settings of an optimizer that TPUEmbeddingV2 silently ignores.

    Weight limits are kept: stock's class ignores them, but the ops apply them.
    """
    if isinstance(optimizer, Adam):
        optimizer = dataclasses.replace(optimizer, lazy_adam=True)
    return dataclasses.replace(
        optimizer, use_gradient_accumulation=True, clip_gradient_min=None, clip_gradient_max=None
    )


@dataclass(frozen=True)
class _AdagradMomentum(AdagradMomentum):
    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a, beta1 = slots["accumulators"], np.float32(self.momentum)
        if self.beta2 == 1.0:
            a = a + tf.square(g)
        else:
            a = np.float32(self.beta2) * a + one_minus(self.beta2) * g * g
        exponent = np.float32(-1.0) / np.float32(self.exponent)
        scaled = power(a + np.float32(self.epsilon), exponent) * g
        m = beta1 * slots["momenta"] + scaled
        step = beta1 * m + scaled if self.use_nesterov else m
        return w - lr * step, {"accumulators": a, "momenta": m}


@dataclass(frozen=True)
class _Adam(Adam):
    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        epsilon = np.float32(self.epsilon)
        m = np.float32(self.beta_1) * slots["momenta"] + one_minus(self.beta_1) * g
        v = np.float32(self.beta_2) * slots["velocities"] + one_minus(self.beta_2) * g * g
        if self.sum_inside_sqrt:
            scale = tf.sqrt(v + epsilon * epsilon)
        else:
            scale = tf.sqrt(v) + epsilon
        return w - lr * m / scale, {"momenta": m, "velocities": v}


@dataclass(frozen=True)
class _FTRL(FTRL):
    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a = slots["accumulators"] + tf.square(g)
        raised = power(a, -self.learning_rate_power)
        grown = raised - power(slots["accumulators"], -self.learning_rate_power)
        limit: TensorLike = np.float32(self.l1_regularization_strength)
        l2, beta = np.float32(self.l2_regularization_strength), np.float32(self.beta)
        if self.multiply_linear_by_learning_rate:
            z = slots["linears"] + lr * g - grown * w
            limit = lr * limit
            divisor = raised + optimization_barrier(np.float32(2.0) * lr * l2) + beta
        else:
            z = slots["linears"] + g - grown * w / lr
            divisor = (raised + beta) / lr + np.float32(2.0) * l2
        clipped = tf.maximum(tf.minimum(z, limit), -limit)
        return (clipped - z) / divisor, {"accumulators": a, "linears": z}


_RULES: dict[type[Optimizer], type[Optimizer]] = {
    SGD: SGD,
    Adagrad: Adagrad,
    AdagradMomentum: _AdagradMomentum,
    Adam: _Adam,
    FTRL: _FTRL,
}
