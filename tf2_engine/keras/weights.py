"""Which variables a layer shows to Keras; checkpoints do not get them from there.

Keras would put a weight that it makes itself into checkpoints under a key of its own: a table
would be stored twice, and the virtual variable of one arithmetic would stand where the other has
a table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Shown:
    """The variables of a layer, in an object that Keras does not look into."""

    def __init__(self, variables: Sequence[Any], *, trainable: bool) -> None:
        self.variables, self.trainable = list(variables), trainable


def _own(layer: Any) -> list[Any]:
    """Returns what a layer shows; nothing while its constructor runs."""
    shown = getattr(layer, "_shown", None)
    return [] if shown is None else shown.variables


class Keras2Weights:
    """Adds what is `_shown` to the weights of a Keras 2 layer."""

    _shown: Shown
    _distinct_rows = False
    trainable: bool

    @property
    def trainable_weights(self) -> list[Any]:
        """The variables that training updates."""
        own = [variable for variable in _own(self) if self.trainable and variable.trainable]
        return [*super().trainable_weights, *own]  # type: ignore[misc]

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The other variables."""
        own = [variable for variable in _own(self) if not (self.trainable and variable.trainable)]
        return [*super().non_trainable_weights, *own]  # type: ignore[misc]

    def _make_variable(
        self,
        initializer: Callable[..., Any],
        shape: Sequence[int],
        name: str,
        trainable: bool = True,
    ) -> tuple[Any, tf.Variable]:
        """Returns a variable as Keras takes it, and as TensorFlow does."""
        variable = tf.Variable(
            functools.partial(initializer, list(shape), dtype=tf.float32),
            trainable=trainable,
            dtype=tf.float32,
            shape=shape,
            name=name,
        )
        return variable, variable


class Keras3Weights:
    """Adds what is `_shown` to the weights of a Keras 3 layer."""

    _shown: Shown
    _distinct_rows = True
    _keras_variable: Any
    _look_up: Callable[..., Any]

    @property
    def variables(self) -> list[Any]:
        """All variables."""
        return [*super().variables, *_own(self)]  # type: ignore[misc]

    @property
    def weights(self) -> list[Any]:
        """All variables but those of metrics and random numbers."""
        return [*super().weights, *_own(self)]  # type: ignore[misc]

    @property
    def trainable(self) -> bool:
        """Whether training updates the layer."""
        return bool(super().trainable)  # type: ignore[misc]

    @trainable.setter
    def trainable(self, value: bool) -> None:
        # A model asks the variables, and not the layer that they belong to.
        super(Keras3Weights, type(self)).trainable.fset(self, value)  # type: ignore[misc]
        for variable in _own(self):
            variable.trainable = bool(value) and self._shown.trainable

    def compute_output_spec(
        self, features: Any, weights: Any = None, serving_config: Any = None
    ) -> Any:
        """Returns what Keras's placeholders of the features lead to, which may be ragged."""
        traced = tf.function(
            lambda *given: self._look_up(*given, serving_config, shapes_only=True),
            autograph=False,
        ).get_concrete_function(*tf.nest.map_structure(as_spec, (features, weights)))
        kind = type(tf.nest.flatten(features)[0])
        return tf.nest.map_structure(
            lambda found: kind(found.shape.as_list(), dtype="float32"), traced.structured_outputs
        )

    def _make_variable(
        self,
        initializer: Callable[..., Any],
        shape: Sequence[int],
        name: str,
        trainable: bool = True,
    ) -> tuple[Any, tf.Variable]:
        """Returns a variable as Keras takes it, and as TensorFlow does."""
        variable = self._keras_variable(
            lambda shape, dtype: initializer(list(shape), dtype=tf.as_dtype(dtype)),
            shape=tuple(shape),
            dtype="float32",
            trainable=trainable,
            name=name,
        )
        return variable, variable.value


def as_spec(given: Any) -> Any:
    """Returns the tf.TypeSpec of a Keras 3 placeholder; of None, None."""
    if given is None:
        return None
    if given.sparse:
        return tf.SparseTensorSpec(given.shape, given.dtype)
    if given.ragged:
        return tf.RaggedTensorSpec(given.shape, given.dtype)
    return tf.TensorSpec(given.shape, given.dtype)
