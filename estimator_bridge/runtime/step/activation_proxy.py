"""Activations into an unmodified model_fn, and their gradients out of it.

The model_fn runs as on a TPU: `features[key]` is an activation. It passes a custom gradient on a
trainable dummy variable that bears stock's name, so whatever the program does with its trainable
variables (`minimize`, `compute_gradients` and `apply_gradients`, even checkpoint keys of slots)
goes as in stock, and the gradient of the activation is kept on its way to the dummy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine import tf_compat

DUMMY_COLLECTION = "tpu_embedding_dummy_table_variables"
DUMMY_NAME = "tpu_embedding_dummy_table_variable_{}"

Shape = Sequence[int | None]


class StandIn:
    """A tensor that is given to the model before what it stands for exists."""

    def __init__(self, shape: Shape, dtype: Any, name: str) -> None:
        self.tensor = tf.identity(tf.placeholder(dtype, shape), name=name)

    def resolve(self, source: tf.Tensor) -> None:
        """Puts `source` in its place."""
        tf_compat.rewire(self.tensor, source)


def create_dummies(tables: Sequence[str]) -> dict[str, tf.Variable]:
    """Makes the dummy variable of each table: trainable, but saved in no checkpoint."""
    return {
        table: tf.get_variable(
            DUMMY_NAME.format(table),
            shape=[1],
            dtype=tf.float32,
            initializer=tf.zeros_initializer(),
            trainable=True,
            collections=[DUMMY_COLLECTION],
            use_resource=True,
        )
        for table in tables
    }


class Trap:
    """The activations of one core as the model sees them, and the gradients it sends back.

    Args:
        shapes: for each feature key the shape of its activation, [batch, (T,) dim].
        dummies: for each feature key the dummy of its table; None traps no gradients.
    """

    def __init__(
        self, shapes: Mapping[str, Shape], dummies: Mapping[str, tf.Variable] | None
    ) -> None:
        self._stand_ins = {
            key: StandIn(shape, tf.float32, f"tpu_embedding_activation/{key}")
            for key, shape in shapes.items()
        }
        self.gradients: dict[str, tf.Tensor] = {}
        self.features = {
            key: stand_in.tensor
            if dummies is None
            else self._trapped(key, stand_in.tensor, dummies[key])
            for key, stand_in in self._stand_ins.items()
        }

    def resolve(self, activations: Mapping[str, tf.Tensor]) -> None:
        """Puts the looked-up activations in the place of the stand-ins."""
        for key, stand_in in self._stand_ins.items():
            stand_in.resolve(activations[key])

    def _trapped(self, key: str, activation: tf.Tensor, dummy: tf.Variable) -> tf.Tensor:
        @tf.custom_gradient
        def through(dummy_value: tf.Tensor, value: tf.Tensor) -> Any:
            looked_up = tf.identity(value)

            def gradient(upstream: tf.Tensor) -> Any:
                if key in self.gradients:
                    raise errors.GradientTakenTwice(
                        f"Feature {key!r}: the gradient of its activation is taken twice; the "
                        "device can receive it once. Compute the gradients of the loss in one "
                        "call."
                    )
                self.gradients[key] = tf.convert_to_tensor(upstream)
                # Where only tables are trained, nothing else makes the step count wait until the
                # lookup has read it.
                with tf.control_dependencies([looked_up]):
                    return tf.identity(tf.zeros([1])), None

            return looked_up, gradient

        return through(dummy.read_value(), tf.stop_gradient(activation))
