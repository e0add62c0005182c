"""`LARSOptimizer`: momentum with a separate learning rate for every layer."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Op, Tensor, TensorLike, Variable


class LARSOptimizer(tf.train.Optimizer):
    """Layer-wise adaptive rate scaling.

        g <- g + weight_decay * w
        rate = learning_rate * eeta * |w| / (|g| + weight_decay |w| + epsilon),  |g| of the gradient
        m <- momentum * m + g
        w <- w - rate * m

    Variables of `skip_list` are not scaled, and where |w| or |g| is 0 the factor is 1.
    Reference: You et al., 2017.

    Args:
        learning_rate, momentum, weight_decay, eeta, epsilon: as above.
        skip_list: parts of the names of variables that get neither scaling nor decay.
        use_nesterov: w <- w - rate * (g + momentum * m).

    Raises:
        InvalidInput: `momentum` is negative.
    """

    def __init__(
        self,
        learning_rate: TensorLike,
        momentum: float = 0.9,
        weight_decay: float = 0.0001,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Sequence[str] | None = None,
        use_nesterov: bool = False,
    ) -> None:
        if momentum < 0.0:
            raise errors.InvalidInput(f"`momentum`={momentum}: momentum should be positive.")
        super().__init__(use_locking=False, name=name)
        self._learning_rate, self._momentum = learning_rate, momentum
        self._weight_decay, self._eeta, self._epsilon = weight_decay, eeta, epsilon
        self._skip_list, self._use_nesterov = skip_list, use_nesterov

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "momentum", self._name)

    def _prepare(self) -> None:
        rate = self._learning_rate
        self._rate = tf.convert_to_tensor(rate() if callable(rate) else rate, name="learning_rate")

    def _rate_and_gradient(self, grad: Tensor, var: Variable) -> tuple[Tensor, Tensor]:
        if any(part in var.name for part in self._skip_list or ()):
            return self._rate, grad
        weight_norm, gradient_norm = tf.norm(var), tf.norm(grad)
        scaled = (
            self._eeta
            * weight_norm
            / (gradient_norm + self._weight_decay * weight_norm + self._epsilon)
        )
        has_both = tf.logical_and(weight_norm > 0.0, gradient_norm > 0.0)
        trust = tf.where(has_both, scaled, tf.ones_like(scaled))
        return self._rate * trust, grad + self._weight_decay * var

    def _apply_dense(self, grad: Tensor, var: Variable) -> Op:
        rate, grad = self._rate_and_gradient(grad, var)
        slot = self.get_slot(var, "momentum")
        momentum = slot.assign(slot * self._momentum + grad, use_locking=self._use_locking)
        if self._use_nesterov:
            momentum = grad + self._momentum * momentum
        return var.assign_sub(rate * momentum, use_locking=self._use_locking)

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Op:
        return self._apply_dense(grad, handle)
