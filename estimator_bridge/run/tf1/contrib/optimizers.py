"""The optimizers of `tf.contrib.opt`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Object, Op, Tensor, TensorLike, Variable

GradientPairs = Sequence[tuple[Tensor, Variable]]


class LazyAdamOptimizer(tf.train.AdamOptimizer):
    """Adam that, for a sparse gradient, updates moments only in the rows of the gradient."""

    def _apply_sparse_shared(
        self, grad: Tensor, var: Variable, indices: Tensor, scatter_add: object
    ) -> Op:
        powers = self._get_beta_accumulators()
        numbers = (*powers, self._lr_t, self._beta1_t, self._beta2_t, self._epsilon_t)
        power1, power2, rate, beta1, beta2, epsilon = (
            tf.cast(each, var.dtype.base_dtype) for each in numbers
        )
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        new_m = beta1 * tf.gather(m, indices) + (1 - beta1) * grad
        new_v = beta2 * tf.gather(v, indices) + (1 - beta2) * tf.square(grad)
        rate = rate * tf.sqrt(1 - power2) / (1 - power1)
        return tf.group(
            tf.scatter_update(m, indices, new_m),
            tf.scatter_update(v, indices, new_v),
            tf.scatter_sub(var, indices, rate * new_m / (tf.sqrt(new_v) + epsilon)),
        )


class DecoupledWeightDecayExtension:
    """Makes an optimizer shrink variables before it updates them: w <- w - weight_decay w.

    Use it as a base class in front of an optimizer. With a sparse gradient, only the gradient's
    rows shrink. Reference: Loshchilov and Hutter, 2019.
    """

    def __init__(self, weight_decay: float | Tensor, *args: Object, **settings: Object) -> None:
        self._weight_decay = weight_decay
        self._decayed: set[object] = set()
        super().__init__(*args, **settings)

    def minimize(self, *args: Object, decay_var_list: object = None, **settings: Object) -> Op:
        return super().minimize(*args, **settings)  # type: ignore[misc]

    def apply_gradients(
        self,
        grads_and_vars: GradientPairs,
        global_step: Variable | None = None,
        name: str | None = None,
        decay_var_list: Sequence[Variable] | None = None,
    ) -> Op:
        """Shrinks the variables of `decay_var_list`, by default all, and then applies gradients."""
        self._decayed = {each.ref() for each in decay_var_list or ()}
        return super().apply_gradients(grads_and_vars, global_step, name)  # type: ignore[misc]

    def _shrunk(self, var: Variable, indices: Tensor | None = None) -> AbstractContextManager[Op]:
        if self._decayed and var.ref() not in self._decayed:
            return tf.control_dependencies([])
        if indices is None:
            return tf.control_dependencies([var.assign_sub(self._weight_decay * var)])
        lost = self._weight_decay * tf.gather(var, indices)
        return tf.control_dependencies([tf.scatter_sub(var, indices, lost)])

    def _apply_dense(self, grad: Tensor, var: Variable) -> Op:
        with self._shrunk(var):
            return super()._apply_dense(grad, var)  # type: ignore[misc]

    def _resource_apply_dense(self, grad: Tensor, var: Variable) -> Op:
        with self._shrunk(var):
            return super()._resource_apply_dense(grad, var)  # type: ignore[misc]

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Variable) -> Op:
        with self._shrunk(var, grad.indices):
            return super()._apply_sparse(grad, var)  # type: ignore[misc]

    def _resource_apply_sparse(self, grad: Tensor, var: Variable, indices: Tensor) -> Op:
        with self._shrunk(var, indices):
            return super()._resource_apply_sparse(grad, var, indices)  # type: ignore[misc]


def extend_with_decoupled_weight_decay(base_optimizer: type) -> type:
    bases = (DecoupledWeightDecayExtension, base_optimizer)
    return type("OptimizerWithDecoupledWeightDecay", bases, {})


class AdamWOptimizer(DecoupledWeightDecayExtension, tf.train.AdamOptimizer):
    """Adam with decoupled weight decay: AdamW."""

    def __init__(
        self,
        weight_decay: float | Tensor,
        learning_rate: float | Tensor = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        settings = (learning_rate, beta1, beta2, epsilon, use_locking, name)
        super().__init__(weight_decay, *settings)


class _Wrapper(tf.train.Optimizer):
    def __init__(self, optimizer: tf.train.Optimizer, name: str) -> None:
        super().__init__(use_locking=False, name=name)
        self._optimizer = optimizer

    def compute_gradients(self, *args: Object, **settings: Object) -> GradientPairs:
        return self._optimizer.compute_gradients(*args, **settings)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        return self._optimizer.variables()


class MovingAverageOptimizer(_Wrapper):
    """Keeps moving averages of the variables that `opt` updates; see `swapping_saver`.

    Args:
        average_decay, num_updates: as in `tf.train.ExponentialMovingAverage`.
        sequential_update: whether to update the averages only after the variables.
    """

    def __init__(
        self,
        opt: tf.train.Optimizer,
        average_decay: float = 0.9999,
        num_updates: Tensor | int | None = None,
        sequential_update: bool = True,
    ) -> None:
        super().__init__(opt, "MovingAverageOptimizer")
        self._averages = tf.train.ExponentialMovingAverage(average_decay, num_updates=num_updates)
        self._is_sequential = sequential_update
        self._swaps: dict[str, Variable] = {}

    def apply_gradients(
        self,
        grads_and_vars: GradientPairs,
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Op:
        pairs = list(grads_and_vars)
        step = self._optimizer.apply_gradients(pairs, global_step, name)
        moved = [variable for gradient, variable in pairs if gradient is not None]
        with tf.control_dependencies([step] if self._is_sequential else []):
            averaging = self._averages.apply(moved)
        for variable in moved:
            average = self._averages.average(variable)
            self._swaps[variable.op.name], self._swaps[average.op.name] = average, variable
        return tf.group(step, averaging, name="train_with_avg")

    def swapping_saver(
        self,
        var_list: Sequence[Variable] | Mapping[str, Variable] | None = None,
        name: str = "swapping_saver",
        **settings: Object,
    ) -> tf.train.Saver:
        """Makes a saver that saves variables and their averages under each other's names.

        Raises InvalidInput if `apply_gradients` has not been called yet.
        """
        if not self._swaps:
            raise errors.InvalidInput(
                "swapping_saver: no averages yet. Call `minimize` or `apply_gradients` first."
            )
        variables = tf.global_variables() if var_list is None else var_list
        if not isinstance(variables, Mapping):
            variables = {each.op.name: each for each in variables}
        swapped = {key: self._swaps.get(each.op.name, each) for key, each in variables.items()}
        return tf.train.Saver(swapped, name=name, **settings)


class _ClippingOptimizer(_Wrapper):
    def __init__(self, optimizer: tf.train.Optimizer, clip_norm: float) -> None:
        super().__init__(optimizer, f"ClipByNorm{optimizer.get_name()}")
        self._clip_norm = clip_norm

    def apply_gradients(
        self,
        grads_and_vars: GradientPairs,
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Op:
        clipped = clip_gradients_by_global_norm(grads_and_vars, self._clip_norm)
        return self._optimizer.apply_gradients(clipped, global_step, name)


def clip_gradients_by_norm(optimizer: tf.train.Optimizer, clip_norm: float) -> tf.train.Optimizer:
    return _ClippingOptimizer(optimizer, clip_norm)


def clip_gradients_by_global_norm(
    gradients_variables: GradientPairs, clip_norm: float = 20.0
) -> GradientPairs:
    gradients, variables = zip(*gradients_variables, strict=True)
    return list(zip(tf.clip_by_global_norm(gradients, clip_norm)[0], variables, strict=True))


class LARSOptimizer(tf.train.Optimizer):
    """Layer-wise adaptive rate scaling.

        g <- gradient + weight_decay * w
        rate = learning_rate * eeta * |w| / (|gradient| + weight_decay |w| + epsilon)
        m <- momentum * m + g
        w <- w - rate * m

    The factor eeta * |w| / (...) is 1 where |w| or |gradient| is 0. Reference: You et al., 2017.

    Args:
        skip_list: a variable whose name contains one of these gets neither scaling nor decay.
        use_nesterov: if True, the last formula is w <- w - rate * (g + momentum * m).

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
        norm = gradient_norm + self._weight_decay * weight_norm + self._epsilon
        scaled = self._eeta * weight_norm / norm
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


class NadamOptimizer(tf.train.AdamOptimizer):
    """Adam that steps along the momentum of the next step.

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g^2
        w <- w - rate * (beta1 * m + (1 - beta1) * g) / (sqrt(v) + epsilon)
        rate = learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)

    With a sparse gradient, m and v of all rows decay, and only the gradient's rows of w move.
    Reference: Dozat, 2016.
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
