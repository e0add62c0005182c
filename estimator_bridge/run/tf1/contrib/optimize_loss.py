"""`optimize_loss`: an optimizer by its name, with decay, noise, clipping and summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Object, Op, Tensor, TensorLike, Variable

OPTIMIZER_CLS_NAMES: Mapping[str, Callable[..., Object]] = {
    "Adagrad": tf.train.AdagradOptimizer,
    "Adam": tf.train.AdamOptimizer,
    "Ftrl": tf.train.FtrlOptimizer,
    "Momentum": lambda learning_rate: tf.train.MomentumOptimizer(learning_rate, momentum=0.9),
    "RMSProp": tf.train.RMSPropOptimizer,
    "SGD": tf.train.GradientDescentOptimizer,
}

OPTIMIZER_SUMMARIES = (
    *("learning_rate", "loss", "gradients", "gradient_norm"),
    *("global_gradient_norm",),
)

Gradients = list[tuple[Object, Variable]]


def optimize_loss(
    loss: TensorLike,
    global_step: Variable | None,
    learning_rate: TensorLike | None,
    optimizer: Object,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Mapping[Object, float] | None = None,
    clip_gradients: Object = None,
    learning_rate_decay_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
    update_ops: Sequence[Op] | None = None,
    variables: Sequence[Variable] | None = None,
    name: str | None = None,
    summaries: Sequence[str] | None = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Tensor:
    """Returns the loss as a tensor whose evaluation makes a step.

    Args:
        loss: scalar.
        global_step: None is the graph's, or none.
        learning_rate: a float is kept in the variable `OptimizeLoss/learning_rate`; None is for
            optimizers that have their own.
        optimizer: a key of `OPTIMIZER_CLS_NAMES`, a class, an instance, or a function of the rate.
        gradient_noise_scale: the standard deviation of normal noise that gradients get.
        gradient_multipliers: factors by variable, or by its name.
        clip_gradients: a global norm, or a function of pairs of gradients and variables.
        learning_rate_decay_fn: takes the rate and the global step.
        update_ops: run before the loss is computed; None are those of UPDATE_OPS.
        variables: to train; None are all trainable ones.
        summaries: of `OPTIMIZER_SUMMARIES`; None are the rate, the loss and the global norms.

    Raises:
        InvalidInput: an argument is of another kind, or no variable has a gradient.
    """
    loss = tf.convert_to_tensor(loss)
    if global_step is None:
        global_step = tf.train.get_global_step()
    with tf.variable_scope(name, "OptimizeLoss", [loss, global_step]):
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops
        if updates:
            with tf.control_dependencies(list(dict.fromkeys(updates))):
                loss = tf.identity(loss)
        rate = _rate(learning_rate, learning_rate_decay_fn, global_step)
        wanted = _checked_summaries(summaries)
        tf_optimizer = _optimizer(optimizer, rate)
        gradients: Gradients = tf_optimizer.compute_gradients(
            loss,
            tf.trainable_variables() if variables is None else variables,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )
        if gradient_noise_scale is not None:
            gradients = _with_noise(gradients, gradient_noise_scale)
        if gradient_multipliers is not None:
            gradients = _multiplied(gradients, gradient_multipliers)
        if "global_gradient_norm" in wanted:
            norm = tf.global_norm([each for each, _ in gradients])
            tf.summary.scalar("global_norm/gradient_norm", norm)
        if clip_gradients is not None:
            gradients = _clipped(gradients, clip_gradients)
        _summarize(wanted, rate, loss, gradients)
        step = global_step if increment_global_step else None
        applied = tf_optimizer.apply_gradients(gradients, global_step=step, name="train")
        with tf.control_dependencies([applied]):
            return tf.identity(loss)


def adaptive_clipping_fn(
    std_factor: float = 2.0,
    decay: float = 0.95,
    static_max_norm: float | None = None,
    global_step: Variable | None = None,
    report_summary: bool = False,
    epsilon: float = 1e-8,
    name: str | None = None,
) -> Callable[[Gradients], Gradients]:
    """Returns a function that clips gradients at a norm that follows those seen so far.

        limit = exp(mean + std_factor * stddev) of the logarithm of the global norm

    where mean and squared mean are moving averages.

    Args:
        static_max_norm: no limit is larger.
        global_step: the averages adapt faster in the first steps: decay is min(decay, t / (t+1)).
    """

    def clip(gradients: Gradients) -> Gradients:
        values = [each for each, _ in gradients]
        norm = tf.global_norm(values)
        with tf.variable_scope(name, "AdaptiveMaxNorm", [norm]):
            log_norm = tf.log(norm + epsilon)
            rate: TensorLike = decay
            if global_step is not None:
                step = tf.cast(global_step, tf.float32)
                rate = tf.minimum(decay, step / (step + 1.0))

            def average(of: str, value: Tensor) -> Tensor:
                moving = tf.get_variable(
                    of, [], initializer=tf.zeros_initializer(), trainable=False
                )
                return moving.assign(moving * rate + (1.0 - rate) * value)

            mean = average("mean", log_norm)
            square = average("sq_mean", tf.square(log_norm))
            stddev = tf.sqrt(tf.maximum(epsilon, square - tf.square(mean)))
            limit = tf.exp(mean + std_factor * stddev)
            if static_max_norm is not None:
                limit = tf.minimum(limit, static_max_norm)
            if report_summary:
                tf.summary.scalar("global_norm/adaptive_max_gradient_norm", limit)
        # Larger gradients than the limit get its norm; smaller ones stay.
        factor = tf.where(norm < limit, tf.ones_like(norm), limit / norm)
        return _changed(gradients, lambda each, _: _times(each, factor))

    return clip


def _rate(
    learning_rate: Object,
    decay: Callable[[Tensor, Tensor], Tensor] | None,
    global_step: Variable | None,
) -> Tensor | None:
    if learning_rate is None:
        return None
    if isinstance(learning_rate, float):
        if learning_rate < 0.0:
            raise errors.InvalidInput(f"Invalid learning_rate {learning_rate}: it is negative.")
        rate = tf.get_variable(
            "learning_rate",
            [],
            trainable=False,
            initializer=tf.constant_initializer(learning_rate),
        )
    elif getattr(learning_rate, "shape", None) is not None and learning_rate.shape.rank == 0:
        rate = learning_rate
    else:
        raise errors.InvalidInput(
            f"Learning rate should be a float or a scalar tensor, got {learning_rate!r}."
        )
    if decay is None:
        return rate
    if global_step is None:
        raise errors.InvalidInput("global_step is required for learning_rate_decay_fn.")
    return decay(rate, global_step)


def _optimizer(optimizer: Object, rate: Tensor | None) -> Object:
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZER_CLS_NAMES:
            raise errors.InvalidInput(
                "Optimizer name should be one of "
                f"[{', '.join(sorted(OPTIMIZER_CLS_NAMES))}], you provided {optimizer}."
            )
        optimizer = OPTIMIZER_CLS_NAMES[optimizer]
    elif isinstance(optimizer, tf.train.Optimizer):
        return optimizer
    if isinstance(optimizer, type) and rate is None:
        raise errors.InvalidInput(f"The learning rate of {optimizer.__name__} must be given.")
    if not callable(optimizer):
        raise errors.InvalidInput(
            f"Unrecognized optimizer: {optimizer!r}; a name, a class, an instance or a function "
            "is needed."
        )
    constructed = (
        optimizer()
        if rate is None
        else optimizer(learning_rate=rate)
        if isinstance(optimizer, type)
        else optimizer(rate)
    )
    if not isinstance(constructed, tf.train.Optimizer):
        raise errors.InvalidInput(f"The optimizer function returned {constructed!r}, no Optimizer.")
    return constructed


def _changed(gradients: Gradients, change: Callable[[Object, Variable], Object]) -> Gradients:
    """Returns the pairs after a change of each gradient; a variable without one has none."""
    return [
        (None if each is None else change(each, variable), variable) for each, variable in gradients
    ]


def _with_noise(gradients: Gradients, scale: float) -> Gradients:
    def noisy(gradient: Object, _: Variable) -> Tensor:
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        shape = gradient.dense_shape if is_sparse else gradient.shape
        return gradient + tf.truncated_normal(shape) * scale

    return _changed(gradients, noisy)


def _multiplied(gradients: Gradients, factors: Mapping[Object, float]) -> Gradients:
    by_name = {getattr(key, "name", key): factor for key, factor in factors.items()}

    def multiplied(gradient: Object, variable: Variable) -> Object:
        reference = variable.experimental_ref() if hasattr(variable, "experimental_ref") else None
        factor = by_name.get(variable.name, by_name.get(variable.op.name, by_name.get(reference)))
        return gradient if factor is None else _times(gradient, tf.cast(factor, gradient.dtype))

    return _changed(gradients, multiplied)


def _times(gradient: Object, factor: Tensor) -> Object:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _clipped(gradients: Gradients, clip: Object) -> Gradients:
    if callable(clip):
        clipped: Gradients = clip(gradients)
        return clipped
    if not isinstance(clip, float):
        raise errors.InvalidInput(f"Unknown type {type(clip)} for clip_gradients; give a float.")
    values, _ = tf.clip_by_global_norm([each for each, _ in gradients], clip)
    return list(zip(values, [variable for _, variable in gradients], strict=True))


def _checked_summaries(summaries: Sequence[str] | None) -> Sequence[str]:
    if summaries is None:
        return ["loss", "learning_rate", "global_gradient_norm"]
    for each in summaries:
        if each not in OPTIMIZER_SUMMARIES:
            raise errors.InvalidInput(
                f"Summaries should be one of [{', '.join(OPTIMIZER_SUMMARIES)}], you provided "
                f"{each}."
            )
    return summaries


def _summarize(
    wanted: Sequence[str], rate: Tensor | None, loss: Tensor, gradients: Gradients
) -> None:
    if "learning_rate" in wanted and rate is not None:
        tf.summary.scalar("learning_rate", rate)
    if "loss" in wanted:
        tf.summary.scalar("loss", loss)
    for gradient, variable in gradients:
        if gradient is None:
            continue
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        name = variable.name.replace(":", "_")
        if "gradients" in wanted:
            tf.summary.histogram(f"gradients/{name}", values)
        if "gradient_norm" in wanted:
            tf.summary.scalar(f"gradient_norm/{name}", tf.global_norm([values]))
