"""`RateByStep`: a learning rate for Keras that is a function of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.keras.layer_settings import Setting, from_file, package_of, plain
from tf2_engine.types import Object, Tensor

Instance = TypeVar("Instance", bound="RateByStepBase")


class RateByStepBase:
    """A learning rate of a Keras optimizer that is a function of the step.

        optimizer = tf.keras.optimizers.Adam(RateByStep(warmed_up))

    For tables, use `ByStep`.

    Args:
        function: computes the rate, a scalar, from the number of earlier steps, an int64 scalar. To
            be written to a file, it has to be registered with Keras.

    Raises:
        WrongType: `function` cannot be called.
    """

    def __init__(self, function: Callable[[Tensor], Object]) -> None:
        self.function = plain(function)
        if not callable(self.function):
            raise errors.WrongType(
                f"`function`: {self.function!r} is not a function of the step. Give a number to "
                "the optimizer itself."
            )

    def __call__(self, step: Object) -> Tensor:
        return tf.cast(self.function(tf.cast(step, tf.int64)), tf.float32)

    def get_config(self) -> dict[str, Object]:
        return {"function": Setting(self.function, package_of(self))}

    @classmethod
    def from_config(cls: type[Instance], config: Mapping[str, Object]) -> Instance:
        return cls(from_file(config["function"]))
