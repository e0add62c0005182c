"""Flattens nests of features to lists in feature order, and packs such lists into nests again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.types import Nest, Object


def flatten(structure: Nest, value: Nest, what: str) -> list[Object]:
    """Lists the leaves of `value` in feature order.

    The leaves of `structure` are positions of features. The leaves of `value` may be composite
    tensors or None. `what` is the name of `value` in messages.
    """
    if isinstance(structure, Mapping) and isinstance(value, Mapping):
        missing, extra = set(structure) - set(value), set(value) - set(structure)
        if missing or extra:
            raise errors.InvalidInput(
                f"`{what}` must have exactly the features {sorted(structure, key=str)}; missing: "
                f"{sorted(missing, key=str)}, unknown: {sorted(extra, key=str)}."
            )
    kinds = [
        (isinstance(nest, Mapping), isinstance(nest, list | tuple)) for nest in (structure, value)
    ]
    if kinds[0] != kinds[1]:
        raise errors.InvalidInput(
            f"`{what}` must have the structure of the feature config, a "
            f"{type(structure).__name__}, but a {type(value).__name__} was passed."
        )
    try:
        tf.nest.assert_same_structure(structure, value, check_types=False)
    except (TypeError, ValueError) as error:
        raise errors.InvalidInput(
            f"`{what}` does not have the structure of the feature config: {error}"
        ) from error
    leaves = dict(zip(tf.nest.flatten(structure), tf.nest.flatten(value), strict=True))
    return [leaves[position] for position in range(len(leaves))]


def check_sequence(structure: Nest, value: Nest, what: str) -> None:
    kinds = [
        next((kind for kind in (list, tuple) if isinstance(nest, kind)), None)
        for nest in (structure, value)
    ]
    if None not in kinds and kinds[0] is not kinds[1]:
        names = [type(nest).__name__ for nest in (structure, value)]
        raise errors.WrongType(
            f"`{what}`: The two structures don't have the same nested structure. The feature "
            f"config is a {names[0]}, but a {names[1]} was passed."
        )


def flatten_shapes(structure: Nest, value: Nest, what: str) -> list[Object]:
    return flatten(structure, _shapes_as_leaves(structure, value), what)


def _shapes_as_leaves(structure: Nest, value: Nest) -> Nest:
    if not tf.nest.is_nested(structure):
        return tf.TensorShape(value) if value is not None else None
    if isinstance(structure, Mapping) and isinstance(value, Mapping):
        return {
            key: _shapes_as_leaves(structure[key], part) if key in structure else part
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple)) and len(value) == len(structure):
        parts = [
            _shapes_as_leaves(inner, part) for inner, part in zip(structure, value, strict=True)
        ]
        return type(structure)(parts) if isinstance(structure, (list, tuple)) else parts
    return value


def pack(structure: Nest, values: Sequence[Object]) -> Nest:
    return tf.nest.map_structure(lambda position: values[position], structure)
