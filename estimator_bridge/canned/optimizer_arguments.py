"""The `optimizer` argument of canned estimators: a name, an object, or a function."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine import tf_compat
from tf2_engine.types import Object

# The class in `tf.compat.v1.train` and the one of Keras.
_CLASSES = {
    "Adagrad": ("AdagradOptimizer", "Adagrad"),
    "Adam": ("AdamOptimizer", "Adam"),
    "Ftrl": ("FtrlOptimizer", "Ftrl"),
    "RMSProp": ("RMSPropOptimizer", "RMSprop"),
    "SGD": ("GradientDescentOptimizer", "SGD"),
}


def v1_optimizer(optimizer: Object, learning_rate: float | None) -> tf.train.Optimizer:
    """Makes an optimizer of `tf.compat.v1.train` from an optimizer, a function or a name.

    Args:
        learning_rate: used if `optimizer` is a name.

    Raises:
        InvalidInput: the name is unknown, or the object is not such an optimizer.
    """
    if isinstance(optimizer, str):
        v1_class = getattr(tf.train, _classes_of(optimizer)[0])
        if not learning_rate:
            raise errors.InvalidInput(
                f"learning_rate must be specified when opt is string. Give one for {optimizer!r}."
            )
        return v1_class(learning_rate=learning_rate)
    optimizer = optimizer() if callable(optimizer) else optimizer
    if not isinstance(optimizer, tf.train.Optimizer):
        raise errors.InvalidInput(
            f"The given object is not an Optimizer instance. Given: {optimizer}. Estimators of "
            "tf.compat.v1 take optimizers of tf.compat.v1.train."
        )
    return optimizer


def keras_optimizer(optimizer: Object, learning_rate: float | None = None) -> Object:
    """Makes an optimizer of `tf.keras.optimizers.legacy` from an optimizer, a function or a name.

    Args:
        learning_rate: used if `optimizer` is a name; None means Keras's default.

    Raises:
        InvalidInput: the name is unknown, or the object is not such an optimizer.
    """
    optimizers = tf_compat.keras2().optimizers
    if isinstance(optimizer, str):
        settings = {} if learning_rate is None else {"learning_rate": learning_rate}
        return getattr(optimizers.legacy, _classes_of(optimizer)[1])(**settings)
    optimizer = optimizer() if callable(optimizer) else optimizer
    if isinstance(optimizer, optimizers.experimental.Optimizer):
        name = type(optimizer).__name__
        raise errors.InvalidInput(
            f"tf.keras.optimizers.{name} does not train in graphs, as estimators do. Please set "
            "your optimizer as an instance of `tf.keras.optimizers.legacy.Optimizer`, e.g., "
            f"`tf.keras.optimizers.legacy.{name}`."
        )
    if not isinstance(optimizer, optimizers.legacy.Optimizer):
        raise errors.InvalidInput(
            "The given object is not a tf.keras.optimizers.Optimizer instance. Given: "
            f"{optimizer}. Estimators of TensorFlow 2 take those of tf.keras.optimizers.legacy."
        )
    return optimizer


def get_optimizer_instance(opt: Object, learning_rate: float | None = None) -> tf.train.Optimizer:
    """Makes an optimizer as `v1_optimizer` does; programs import it by this name."""
    return v1_optimizer(opt, learning_rate)


def get_optimizer_instance_v2(opt: Object, learning_rate: float | None = None) -> Object:
    """Makes an optimizer as `keras_optimizer` does; programs import it by this name."""
    return keras_optimizer(opt, learning_rate or None)


def counting_steps(optimizer: Object) -> Object:
    """Makes a Keras optimizer count its steps in the global step."""
    optimizer.iterations = tf.train.get_or_create_global_step()
    return optimizer


def _classes_of(name: str) -> tuple[str, str]:
    if name not in _CLASSES:
        raise errors.InvalidInput(
            f"Unsupported optimizer name: {name}. Supported names are: {tuple(sorted(_CLASSES))}."
        )
    return _CLASSES[name]
