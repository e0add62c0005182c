"""`numpy_input_fn`: batches of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from estimator_bridge import errors
from estimator_bridge.canned.queues.row_queue import array_rows, next_batch
from tf2_engine.types import Array, Nest, Object

Arrays: TypeAlias = Array | Mapping[str, Array]

_WHOLE_INPUT = "__direct_np_input__"
_TARGET = "__target_key__"


def numpy_input_fn(
    x: Arrays,
    y: Arrays | None = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Nest]:
    """Makes an input_fn that feeds arrays through a queue of the graph.

    Args:
        x: features, an array or arrays by name, [rows, ...].
        y: labels in the same form, or None.
        batch_size: rows per batch; with `num_epochs` the last batch may be smaller.
        num_epochs: passes over the rows; None means no end.
        shuffle: whether the order is random; it must be given.
        queue_capacity, num_threads: the size of the queue, and how many threads fill it.

    Returns:
        A function that returns features, or (features, labels), in the structures of x and y.

    Raises:
        InvalidInput: `shuffle` is not a bool. When the function is called: there are no arrays,
            they
            are empty or differ in length, or a key is both a feature and a label.
        WrongType: when the function is called: x is neither an array nor a dict.
    """
    check_shuffle(shuffle)

    def input_fn() -> Nest:
        features, labels = _features(x), _labels(x, y)
        _check_lengths(features, labels)
        columns = next_batch(
            array_rows([*features.values(), *labels.values()]),
            batch_size,
            queue_capacity,
            shuffle=bool(shuffle),
            num_epochs=num_epochs,
            num_threads=num_threads,
        )
        in_x, in_y = columns[: len(features)], columns[len(features) :]
        fed_features = dict(zip(features, in_x, strict=True)) if isinstance(x, Mapping) else in_x[0]
        if y is None:
            return fed_features
        return fed_features, dict(zip(labels, in_y, strict=True)) if isinstance(
            y, Mapping
        ) else in_y[0]

    return input_fn


def check_shuffle(shuffle: Object) -> None:
    if not isinstance(shuffle, bool):
        raise errors.InvalidInput(
            "shuffle must be provided and explicitly set as boolean: True for training, False to "
            f"keep the order; got {shuffle!r}."
        )


def _features(x: Object) -> dict[str, Array]:
    if isinstance(x, np.ndarray):
        arrays = {_WHOLE_INPUT: x}
        is_empty = x.size == 0
    elif isinstance(x, Mapping):
        arrays = dict(sorted(x.items()))
        is_empty = not x
    else:
        raise errors.WrongType(f"x must be a dict or array, got {type(x).__name__}.")
    if is_empty:
        raise errors.InvalidInput(f"x cannot be an empty {type(x).__name__}: it has no features.")
    return arrays


def _labels(x: Arrays, y: Arrays | None) -> dict[str, Array]:
    if y is None:
        return {}
    if not isinstance(y, Mapping):
        key = _TARGET
        while isinstance(x, Mapping) and key in x:
            key += "_n"
        return {key: y}
    if not y:
        raise errors.InvalidInput("y cannot be empty. Give None if there are no labels.")
    shared = sorted(set(y) & set(x)) if isinstance(x, Mapping) else []
    if shared:
        raise errors.InvalidInput(
            f"{len(shared)} duplicate keys are found in both x and y: {shared}. Give the labels "
            "other keys."
        )
    return dict(sorted(y.items()))


def _check_lengths(features: Mapping[str, Array], labels: Mapping[str, Array]) -> None:
    lengths = {array.shape[0] for array in (*features.values(), *labels.values())}
    if len(lengths) > 1:
        shapes = [
            ", ".join(f"{key} {array.shape}" for key, array in arrays.items()) or "none"
            for arrays in (features, labels)
        ]
        raise errors.InvalidInput(
            "Length of tensors in x and y is mismatched. All arrays need the same first dimension; "
            f"x: {shapes[0]}; y: {shapes[1]}."
        )
