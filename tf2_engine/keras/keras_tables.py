"""Tables that a Keras optimizer trains: ordinary variables with an engine's checkpoint keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import default_initializer
from tf2_engine.types import Object, Tensor, Variable

MakeVariable = Callable[..., tuple[Object, Variable]]
"""Creates a variable, given an initializer, a shape, a name, and whether the variable is trainable.

Returns the variable as a Keras object and as a TensorFlow object.
"""


class KerasTables(tf_compat.CheckpointedEmbedding):
    """Tables that are trainable variables, one per table: [vocabulary, dim] float32.

    `tf.train.Checkpoint` writes the tables under the keys of an engine with the same tables. The
    Keras optimizer owns the slots. With `distinct`, gradients contain each row once, because Keras
    3's optimizers would square each gradient of a repeated row, instead of the sum of these
    gradients.

    Attributes:
        parameters: maps each table's name to its variable.
        keras_variables: the Keras objects of these variables, in the order of the spec.
    """

    def __init__(self, spec: EngineSpec, make: MakeVariable, *, distinct: bool) -> None:
        self._distinct = distinct
        self.keras_variables: list[Object] = []
        self.parameters: dict[str, Variable] = {}
        for table in spec.tables:
            assert table.name is not None
            initializer = table.initializer or default_initializer(table.dim)
            keras_variable, variable = make(
                initializer, [table.vocabulary_size, table.dim], table.name
            )
            self.keras_variables.append(keras_variable)
            self.parameters[table.name] = variable
            # Tracks the Keras object, which optimizers also track, so that the variable is saved
            # only once.
            self._track(table.name, keras_variable)

    def __repr__(self) -> str:
        return f"<KerasTables {len(self.parameters)} tables>"

    def to_look_up(self) -> Mapping[str, Tensor]:
        """Returns the variables, or their values if gradients of whole tables are needed.

        Several replicas use gradients of whole tables, because CollectiveGatherV2 fails if their
        numbers of rows differ.
        """
        replicated = tf.distribute.get_strategy().num_replicas_in_sync > 1
        if not replicated and not self._distinct:
            return self.parameters
        read = _with_dense_gradient if replicated else _with_distinct_rows
        return {
            name: read(tf.convert_to_tensor(variable)) for name, variable in self.parameters.items()
        }

    def _exported(self) -> dict[str, Variable]:
        return dict(self.parameters)


Gradient = Callable[[Object], Object]


@tf.custom_gradient
def _with_dense_gradient(value: Tensor) -> tuple[Tensor, Gradient]:
    return tf.identity(value), tf.convert_to_tensor


@tf.custom_gradient
def _with_distinct_rows(value: Tensor) -> tuple[Tensor, Gradient]:
    def add_up(gradient: Object) -> Object:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        rows, position = tf.unique(gradient.indices)
        sums = tf.math.unsorted_segment_sum(gradient.values, position, tf.size(rows))
        return tf.IndexedSlices(sums, rows, gradient.dense_shape)

    return tf.identity(value), add_up
