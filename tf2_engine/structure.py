"""Nests of features: from what a user passes to a flat list in feature order, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors


def flatten(structure: Any, value: Any, what: str) -> list[Any]:
    """Returns the leaves of `value` in feature order.

    Args:
        structure: a nest whose leaves are feature positions.
        value: a nest of the same structure; its leaves may be composite tensors or None.
        what: how messages call `value`.

    Raises:
        InvalidInput: the structures differ; the message names what is missing or too much.
    """
    if isinstance(structure, Mapping) and isinstance(value, Mapping):
        missing, extra = set(structure) - set(value), set(value) - set(structure)
        if missing or extra:
            raise errors.InvalidInput(
                f"`{what}` must have exactly the features {sorted(structure, key=str)}; missing: "
                f"{sorted(missing, key=str)}, unknown: {sorted(extra, key=str)}."
            )
    if not _same_kind(structure, value):
        raise errors.InvalidInput(
            f"`{what}` does not have the structure of the feature config, which is a "
            f"{type(structure).__name__}, but is a {type(value).__name__}."
        )
    try:
        tf.nest.assert_same_structure(structure, value, check_types=False)
    except (TypeError, ValueError) as error:
        raise errors.InvalidInput(
            f"`{what}` does not have the structure of the feature config: {error}"
        ) from error
    positions = tf.nest.flatten(structure)
    leaves = tf.nest.flatten(value)
    ordered: list[Any] = [None] * len(positions)
    for position, leaf in zip(positions, leaves, strict=True):
        ordered[position] = leaf
    return ordered


def flatten_shapes(structure: Any, value: Any, what: str) -> list[Any]:
    """Returns shapes in feature order; as `flatten`, but tuples and lists of sizes are leaves."""
    return flatten(structure, _shapes_as_leaves(structure, value), what)


def _shapes_as_leaves(structure: Any, value: Any) -> Any:
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


def _same_kind(structure: Any, value: Any) -> bool:
    """Whether both are dicts, or both sequences, or both neither."""
    return isinstance(structure, Mapping) == isinstance(value, Mapping) and isinstance(
        structure, (list, tuple)
    ) == isinstance(value, (list, tuple))


def pack(structure: Any, values: Sequence[Any]) -> Any:
    """Returns `values`, one per feature, in the structure of the feature config."""
    return tf.nest.map_structure(lambda position: values[position], structure)
