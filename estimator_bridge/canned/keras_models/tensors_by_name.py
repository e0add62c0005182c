"""Orders an estimator's features, labels and weights as a Keras model takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Tensor

_FEATURES, _WEIGHTS = "features", "sample_weights"


class KerasBatch(NamedTuple):
    """A batch as a Keras model takes it.

    Attributes:
        inputs: the tensors in the order of the model's inputs, or by name.
        targets: the labels in the order of the model's outputs.
        weights: the weights of the examples as the program gives them, or None.
    """

    inputs: Nest
    targets: list[Tensor] | None
    weights: Nest


def keras_batch(model: Object, features: Nest, labels: Nest) -> KerasBatch:
    """Orders a batch by a Keras model's inputs and outputs.

    Features may be {'features': ..., 'sample_weights': ...}.

    Raises:
        MissingKey: features or labels are a dict that lacks an input or output of the model.
    """
    weights = None
    if isinstance(features, dict) and set(features) == {_FEATURES, _WEIGHTS}:
        features, weights = features[_FEATURES], features[_WEIGHTS]
    if isinstance(model.inputs, dict):
        inputs: Nest = {name: _tensor(features[name]) for name in model.inputs}
    elif model.inputs is None and isinstance(features, dict):
        inputs = {name: _tensor(value) for name, value in features.items()}
    else:
        names = _names(model, "input_names", "input", features)
        inputs = _in_order(features, names, "features", "inputs")
    names = _names(model, "output_names", "output", labels)
    return KerasBatch(inputs, _in_order(labels, names, "labels", "outputs"), weights)


def weights_by_output(weights: Nest, outputs: Sequence[str]) -> list[Object]:
    """Lists the weights of the examples for each output of a model; None for an output without.

    Args:
        weights: a tensor if there is one output, or else a list, or a dict by output.

    Raises:
        InvalidInput: there are weights for outputs that the model does not have.
        WrongType: the model has several outputs, and weights are neither a list nor a dict.
    """
    if isinstance(weights, (list, tuple)) and not weights:
        return [None] * len(outputs)
    if isinstance(weights, Mapping) and (len(outputs) > 1 or outputs[0] in weights):
        unknown = sorted(set(weights) - set(outputs))
        if unknown and len(outputs) > 1:
            raise errors.InvalidInput(
                f"Unknown entries in sample_weights dictionary: {unknown}. Only expected following "
                f"keys: {list(outputs)}. Leave them out, or rename them."
            )
        return [weights.get(name) for name in outputs]
    if isinstance(weights, (list, tuple)):
        if len(weights) == len(outputs):
            return list(weights)
        if len(outputs) > 1:
            raise errors.InvalidInput(
                f"Provided `sample_weights` was a list of {len(weights)} elements, but the model "
                f"has {len(outputs)} outputs. Give one for each output, or a dict by output."
            )
    if len(outputs) > 1:
        raise errors.WrongType(
            "The model has multiple outputs, so `sample_weights` should be either a list or a "
            f"dict, got {type(weights).__name__}. The outputs are {list(outputs)}."
        )
    return [weights]


def _names(model: Object, attribute: str, prefix: str, values: Nest) -> list[str]:
    """Names a model's inputs or outputs; those of a subclassed model are numbered."""
    if not isinstance(values, dict):
        return []
    if tf_compat.is_graph_network(model):
        return list(getattr(model, attribute))
    return [f"{prefix}_{number}" for number in range(1, len(values) + 1)]


def _in_order(values: Nest, names: Sequence[str], what: str, of: str) -> list[Tensor] | None:
    if values is None:
        return None
    if not isinstance(values, dict):
        items = values if isinstance(values, (list, tuple)) else [values]
        return [_tensor(item) for item in items]
    missing = sorted(set(names) - set(values))
    if missing:
        raise errors.MissingKey(
            f"The dictionary passed into {what} does not cover requested {of} keys defined in the "
            f"keras model. Expected keys: {sorted(names)}; {what} keys: {sorted(values)}; missed "
            f"keys: {missing}. Add them in the input_fn."
        )
    return [_tensor(values[name]) for name in names]


def _tensor(value: Object) -> Tensor:
    return value if tf.is_tensor(value) else tf.convert_to_tensor_or_sparse_tensor(value)
