"""Makes the variables of layers, and collects their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge.run.tf1.contrib.variables import model_variable
from tf2_engine.types import Nest, Object, Tensor, Variable


def layer_variable(
    name: str,
    shape: Object,
    dtype: Object,
    initializer: Object,
    regularizer: Object = None,
    trainable: bool = True,
    variables_collections: Nest = None,
) -> Variable:
    """Makes a model variable of a layer.

    Args:
        variables_collections: the collections of all variables of the layer, or those of each by
            its name.
    """
    collections = variables_collections
    if isinstance(collections, Mapping):
        collections = collections.get(name)
    return model_variable(
        name,
        shape=shape,
        dtype=dtype,
        initializer=initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=collections,
    )


def finished(
    outputs: Tensor,
    activation_fn: Callable[[Tensor], Tensor] | None,
    collections: str | None,
    scope: tf.VariableScope | str,
) -> Tensor:
    """Returns the outputs of a layer after its activation, and adds them to the collections."""
    if activation_fn is not None:
        outputs = activation_fn(outputs)
    name = scope if isinstance(scope, str) else scope.original_name_scope
    return collect_named_outputs(collections, name, outputs)


def collect_named_outputs(collections: str | None, alias: str, outputs: Tensor) -> Tensor:
    """Adds outputs to collections, in which they are found by `alias`; returns them."""
    if collections:
        vars(outputs).setdefault("aliases", []).append(alias.removesuffix("/"))
        tf.add_to_collections(collections, outputs)
    return outputs
