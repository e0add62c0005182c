"""The learning rate of a Keras optimizer at the step that is being taken."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.types import Object, Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class OptimizerRate:
    """Reads the rate of a Keras optimizer at every step: scalar float32.

    With the `decay` of a legacy optimizer the rate is divided by 1 + decay * iterations.
    """

    optimizer: Object
    decay: float = 0.0

    def __post_init__(self) -> None:
        # Legacy optimizers make these variables when they are first read, which should not be
        # inside a tf.function.
        _ = self.optimizer.iterations, self.optimizer.learning_rate

    @property
    def iterations(self) -> Tensor:
        """The number of steps that the optimizer has counted."""
        return tf.convert_to_tensor(self.optimizer.iterations)

    def __call__(self) -> Tensor:
        """Returns the rate of the step."""
        rate = tf_compat.keras_learning_rate(self.optimizer)
        iterations = self.iterations
        if callable(rate) and not hasattr(rate, "dtype"):
            # A schedule takes the number of steps, any other callable nothing.
            rate = rate(iterations) if hasattr(rate, "get_config") else rate()
        rate = tf.cast(tf.convert_to_tensor(rate), tf.float32)
        return rate / (1.0 + self.decay * tf.cast(iterations, tf.float32)) if self.decay else rate


@dataclasses.dataclass(frozen=True, eq=False)
class BiasCorrectedRate:
    """Folds Adam's bias correction into a rate: times sqrt(1 - beta_2^t) / (1 - beta_1^t).

    The step t is one more than `iterations`: an optimizer counts when it is through.

    Reference: Kingma and Ba, 2014, the end of section 2.
    """

    rate: OptimizerRate
    beta_1: float
    beta_2: float

    def __call__(self) -> Tensor:
        """Returns the corrected rate of the step."""
        step = tf.cast(self.rate.iterations, tf.float32) + 1.0
        power_1 = tf.pow(tf.constant(self.beta_1, tf.float32), step)
        power_2 = tf.pow(tf.constant(self.beta_2, tf.float32), step)
        return self.rate() * tf.sqrt(1.0 - power_2) / (1.0 - power_1)
