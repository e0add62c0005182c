"""The variables of a layer, and tables that a Keras optimizer trains.

Keras sees the variables but does not track them. If it tracked them, checkpoints would contain
weights under Keras's keys, and tables twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.keras.layer_settings import keras_of
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import default_initializer
from tf2_engine.types import Initializer, Nest, Object, Tensor, Variable


class LayerVariables:
    """Holds the variables of a layer, so that Keras does not track them."""

    def __init__(self, variables: Sequence[Object], *, trainable: bool) -> None:
        self.variables, self.trainable = list(variables), trainable


def _variables(layer: Object) -> list[Object]:
    layer_variables = getattr(layer, "_layer_variables", None)
    return [] if layer_variables is None else layer_variables.variables


class Keras2Weights:
    """Adds the `_layer_variables` to the weights of a Keras 2 layer."""

    _layer_variables: LayerVariables
    _distinct_rows = False
    trainable: bool

    @property
    def trainable_weights(self) -> list[Object]:
        of_tables = [each for each in _variables(self) if self.trainable and each.trainable]
        return [*super().trainable_weights, *of_tables]  # type: ignore[misc]

    @property
    def non_trainable_weights(self) -> list[Object]:
        of_tables = [each for each in _variables(self) if not (self.trainable and each.trainable)]
        return [*super().non_trainable_weights, *of_tables]  # type: ignore[misc]

    def _make_variable(
        self, initializer: Initializer, shape: Sequence[int], name: str, trainable: bool = True
    ) -> tuple[Object, Variable]:
        variable = tf.Variable(
            functools.partial(initializer, list(shape), dtype=tf.float32),
            trainable=trainable,
            dtype=tf.float32,
            shape=shape,
            name=name,
        )
        return variable, variable


class Keras3Weights:
    """Adds the `_layer_variables` to the weights of a Keras 3 layer."""

    _layer_variables: LayerVariables
    _distinct_rows = True
    _look_up: Callable[..., Nest]

    @property
    def variables(self) -> list[Object]:
        return [*super().variables, *_variables(self)]  # type: ignore[misc]

    @property
    def weights(self) -> list[Object]:
        return [*super().weights, *_variables(self)]  # type: ignore[misc]

    @property
    def trainable(self) -> bool:
        return bool(super().trainable)  # type: ignore[misc]

    @trainable.setter
    def trainable(self, value: bool) -> None:
        # A model reads `trainable` of the variables, not of their layer.
        super(Keras3Weights, type(self)).trainable.fset(self, value)  # type: ignore[misc]
        for variable in _variables(self):
            variable.trainable = bool(value) and self._layer_variables.trainable

    def compute_output_spec(
        self, features: Nest, weights: Nest = None, serving_config: Nest = None
    ) -> Nest:
        return output_spec(
            lambda *inputs: self._look_up(*inputs, serving_config, shapes_only=True),
            features,
            weights,
        )

    def _make_variable(
        self, initializer: Initializer, shape: Sequence[int], name: str, trainable: bool = True
    ) -> tuple[Object, Variable]:
        variable = keras_of(self).Variable(
            lambda shape, dtype: initializer(list(shape), dtype=tf.as_dtype(dtype)),
            shape=tuple(shape),
            dtype="float32",
            trainable=trainable,
            name=name,
        )
        return variable, variable.value


def output_spec(function: Callable[..., Nest], *inputs: Nest) -> Nest:
    traced = tf.function(function, autograph=False).get_concrete_function(
        *tf.nest.map_structure(_type_spec, inputs)
    )
    placeholder = type(tf.nest.flatten(inputs)[0])
    return tf.nest.map_structure(
        lambda output: placeholder(
            output.shape.as_list(),
            dtype=output.dtype.name,
            sparse=isinstance(output, tf.SparseTensor),
        ),
        traced.structured_outputs,
    )


def _type_spec(placeholder: Object) -> Object:
    if placeholder is None:
        return None
    if placeholder.sparse:
        return tf.SparseTensorSpec(placeholder.shape, placeholder.dtype)
    if placeholder.ragged:
        return tf.RaggedTensorSpec(placeholder.shape, placeholder.dtype)
    return tf.TensorSpec(placeholder.shape, placeholder.dtype)


MakeVariable = Callable[..., tuple[Object, Variable]]
"""Takes initializer, shape, name and `trainable`; returns Keras' variable and TensorFlow's."""


class KerasTables(tf_compat.CheckpointedEmbedding):
    """Tables as trainable variables: one variable per table, [vocabulary, dim] float32.

    `tf.train.Checkpoint` writes `parameters` under the same keys as the tables of an engine. Slots
    belong to the Keras optimizer. With `distinct`, gradients contain each row once. Without it,
    Keras 3's optimizers would square each gradient of a repeated row instead of their sum.
    `keras_variables` are the Keras objects in the order of the spec.
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

        With several replicas, gradients must cover whole tables, because CollectiveGatherV2 fails
        if the replicas have different numbers of rows.
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
