"""Several layers, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from tf2_engine.types import Object, Tensor, TensorLike

Layer = Callable[..., Tensor]


def repeat(
    inputs: TensorLike, repetitions: int, layer: Layer, *args: Object, **kwargs: Object
) -> Tensor:
    """Applies a layer several times, each with variables of its own: `Repeat/conv2d_1`, ....

    Args:
        scope: a keyword argument, in the place of "Repeat" and of the layer's name below it.
    """
    scope = kwargs.pop("scope", None)
    with tf.variable_scope(scope, "Repeat", [inputs]):
        name = scope or _name_of(layer, "repeat")
        outputs = tf.convert_to_tensor(inputs)
        for number in range(1, repetitions + 1):
            outputs = layer(outputs, *args, scope=f"{name}_{number}", **kwargs)
        return outputs


def stack(
    inputs: TensorLike, layer: Layer, stack_args: Sequence[Object], **kwargs: Object
) -> Tensor:
    """Applies a layer once for each of `stack_args`, which are its arguments."""
    scope = kwargs.pop("scope", None)
    with tf.variable_scope(scope, "Stack", [inputs]):
        name = scope or _name_of(layer, "stack")
        outputs = tf.convert_to_tensor(inputs)
        for number, layer_args in enumerate(stack_args, 1):
            args = layer_args if isinstance(layer_args, (list, tuple)) else [layer_args]
            outputs = layer(outputs, *args, scope=f"{name}_{number}", **kwargs)
        return outputs


def _name_of(layer: Object, default: str) -> str:
    function = getattr(layer, "func", layer)  # That of a partial.
    return str(getattr(function, "__name__", default))
