"""Gives activations to an unmodified model_fn, and collects the gradients that it computes.

A custom gradient records each activation's gradient. Each activation also depends on a trainable
dummy variable with stock's name, so that optimizers and the checkpoint keys of slots work as in
stock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine import tf_compat
from tf2_engine.types import DType, Object, Op, Tensor, TensorShape, Variable

_DUMMIES = "tpu_embedding_dummy_table_variables"
DUMMY_NAME = "tpu_embedding_dummy_table_variable_{}"

StaticShape = Sequence[int | None]


def placeholder(shape: StaticShape | TensorShape, dtype: DType, name: str) -> Tensor:
    return tf.identity(tf.placeholder(dtype, shape), name=name)


def create_dummies(tables: Sequence[str]) -> dict[str, Variable]:
    """Creates a dummy variable for each table, trainable but not saved in checkpoints."""
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
    return tf.variables_initializer(tf.get_collection(_DUMMIES))


class ActivationProxy:
    """Holds one core's activations, which the model reads, and their gradients, keyed by feature.

    `shapes` are [batch, (T,) dim]. `dummies` has the dummy variable of each feature's table. If
    `dummies` is None, no gradients are recorded.
    """

    def __init__(
        self, shapes: Mapping[str, StaticShape], dummies: Mapping[str, Variable] | None
    ) -> None:
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
        for key, tensor in self._placeholders.items():
            tf_compat.rewire(tensor, activations[key])

    def _with_gradient(self, key: str, activation: Tensor, dummy: Variable) -> Tensor:
        @tf.custom_gradient
        def identity(dummy_value: Tensor, value: Tensor) -> Object:
            looked_up = tf.identity(value)

            def gradient(upstream: Tensor) -> Object:
                if key in self.gradients:
                    raise errors.GradientTakenTwice(
                        f"Feature {key!r}: the gradient of its activation is computed twice, but "
                        "the device accepts only one. Compute all gradients in one call."
                    )
                self.gradients[key] = tf.convert_to_tensor(upstream)
                # In a model that trains only tables, nothing else makes the update of the step
                # counter wait until the lookup has read the step.
                with tf.control_dependencies([looked_up]):
                    return tf.identity(tf.zeros([1])), None

            return looked_up, gradient

        return identity(dummy.read_value(), tf.stop_gradient(activation))
