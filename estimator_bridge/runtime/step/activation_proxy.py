"""Gives activations to an unmodified model_fn, and keeps the gradients that it computes for them.

The model_fn runs as on a TPU: `features[key]` is an activation. It passes a custom gradient on a
trainable dummy variable that bears stock's name, so that everything that the program does with its
trainable variables (`minimize`, `compute_gradients` and `apply_gradients`, even checkpoint keys of
slots) works as in stock, and the gradient of the activation is kept on its way to the dummy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine import tf_compat
from tf2_engine.types import DType, Object, Op, Tensor, TensorShape, Variable

_DUMMIES = "tpu_embedding_dummy_table_variables"
DUMMY_NAME = "tpu_embedding_dummy_table_variable_{}"

Shape = Sequence[int | None]


def placeholder(shape: Shape | TensorShape, dtype: DType, name: str) -> Tensor:
    """Returns a tensor for the model to use before its source exists; see `tf_compat.rewire`."""
    return tf.identity(tf.placeholder(dtype, shape), name=name)


def create_dummies(tables: Sequence[str]) -> dict[str, Variable]:
    """Returns a new dummy variable for each table: trainable, but saved in no checkpoint."""
    return {
        table: tf.get_variable(
            DUMMY_NAME.format(table),
            shape=[1],
            dtype=tf.float32,
            initializer=tf.zeros_initializer(),
            collections=[_DUMMIES],
            use_resource=True,
        )
        for table in tables
    }


def initialize_dummies() -> Op:
    """Returns the op that initialises the dummies of the default graph."""
    return tf.variables_initializer(tf.get_collection(_DUMMIES))


class ActivationProxy:
    """The activations of one core as the model sees them, and their gradients, by feature key.

    Args:
        shapes: [batch, (T,) dim] of each activation.
        dummies: the dummy of each feature's table; None keeps no gradients.

    Attributes:
        features: the tensors that the model gets, float32.
        gradients: the gradients of activations, once they are computed.
    """

    def __init__(self, shapes: Mapping[str, Shape], dummies: Mapping[str, Variable] | None) -> None:
        self._placeholders = {
            key: placeholder(shape, tf.float32, f"tpu_embedding_activation/{key}")
            for key, shape in shapes.items()
        }
        self.gradients: dict[str, Tensor] = {}
        self.features = self._placeholders
        if dummies is not None:
            self.features = {
                key: self._with_gradient(key, tensor, dummies[key])
                for key, tensor in self._placeholders.items()
            }

    def resolve(self, activations: Mapping[str, Tensor]) -> None:
        """Makes the looked-up activations the values of the placeholders."""
        for key, tensor in self._placeholders.items():
            tf_compat.rewire(tensor, activations[key])

    def _with_gradient(self, key: str, activation: Tensor, dummy: Variable) -> Tensor:
        @tf.custom_gradient
        def identity(dummy_value: Tensor, value: Tensor) -> Object:
            looked_up = tf.identity(value)

            def gradient(upstream: Tensor) -> Object:
                if key in self.gradients:
                    raise errors.GradientTakenTwice(
                        f"Feature {key!r}: the gradient of its activation is taken twice; the "
                        "device can receive it once. Compute all gradients of the loss in one call."
                    )
                self.gradients[key] = tf.convert_to_tensor(upstream)
                # Where only tables are trained, nothing else makes the step count wait until the
                # lookup has read it.
                with tf.control_dependencies([looked_up]):
                    return tf.identity(tf.zeros([1])), None

            return looked_up, gradient

        return identity(dummy.read_value(), tf.stop_gradient(activation))
