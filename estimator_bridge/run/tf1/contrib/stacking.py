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
    return _in_turn("Repeat", inputs, layer, [args] * repetitions, **kwargs)


def stack(
    inputs: TensorLike, layer: Layer, stack_args: Sequence[Object], **kwargs: Object
) -> Tensor:
    """Applies a layer once for each of `stack_args`, which are its arguments."""
    args = [each if isinstance(each, (list, tuple)) else [each] for each in stack_args]
    return _in_turn("Stack", inputs, layer, args, **kwargs)


def _in_turn(
    default_scope: str,
    inputs: TensorLike,
    layer: Layer,
    args: Sequence[Sequence[Object]],
    /,
    scope: str | None = None,
    **kwargs: Object,
) -> Tensor:
    """Applies a layer once for each of some lists of arguments, in scopes with a number."""
    function = getattr(layer, "func", layer)  # That of a partial.
    name = scope or getattr(function, "__name__", default_scope.lower())
    with tf.variable_scope(scope, default_scope, [inputs]):
        outputs = tf.convert_to_tensor(inputs)
        for number, args_of_layer in enumerate(args, 1):
            outputs = layer(outputs, *args_of_layer, scope=f"{name}_{number}", **kwargs)
        return outputs
