"""`NadamOptimizer`: Adam with Nesterov's momentum."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from tf2_engine.types import Op, Tensor, Variable


class NadamOptimizer(tf.train.AdamOptimizer):
    """Adam that steps along the momentum of the next step.

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g^2
        w <- w - rate * (beta1 * m + (1 - beta1) * g) / (sqrt(v) + epsilon)
        rate = learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)

    With a sparse gradient, m and v of all rows decay, and only the gradient's rows of w move. It
    has the arguments and slots of `tf.train.AdamOptimizer`. Reference: Dozat, 2016.
    """

    def _apply_dense(self, grad: Tensor, var: Variable) -> Op:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        updated = tf.raw_ops.ApplyAdam(var=var, m=m, v=v, **self._settings(grad, var))
        return updated.op

    def _resource_apply_dense(self, grad: Tensor, var: Variable) -> Op:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        handles = {"var": var.handle, "m": m.handle, "v": v.handle}
        return tf.raw_ops.ResourceApplyAdam(**handles, **self._settings(grad, var))

    def _settings(self, grad: Tensor, var: Variable) -> dict[str, Tensor | bool]:
        beta1_power, beta2_power = self._get_beta_accumulators()
        numbers = {
            **{"beta1_power": beta1_power, "beta2_power": beta2_power, "lr": self._lr_t},
            **{"beta1": self._beta1_t, "beta2": self._beta2_t, "epsilon": self._epsilon_t},
        }
        cast = {name: tf.cast(value, var.dtype.base_dtype) for name, value in numbers.items()}
        return {**cast, "grad": grad, "use_locking": self._use_locking, "use_nesterov": True}

    def _apply_sparse_shared(
        self,
        grad: Tensor,
        var: Variable,
        indices: Tensor,
        scatter_add: Callable[[Variable, Tensor, Tensor], Tensor],
    ) -> Op:
        settings = self._settings(grad, var)
        beta1, beta2 = settings["beta1"], settings["beta2"]
        correction = tf.sqrt(1 - settings["beta2_power"]) / (1 - settings["beta1_power"])
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        of_m, of_v = grad * (1 - beta1), grad * grad * (1 - beta2)
        with tf.control_dependencies([tf.assign(m, m * beta1), tf.assign(v, v * beta2)]):
            moments = [scatter_add(m, indices, of_m), scatter_add(v, indices, of_v)]
        with tf.control_dependencies(moments):
            momentum = beta1 * tf.gather(m, indices) + of_m
            root = tf.sqrt(tf.gather(v, indices)) + settings["epsilon"]
            moved = scatter_add(var, indices, -settings["lr"] * correction * momentum / root)
        return tf.group(moved, *moments)
