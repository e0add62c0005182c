"""Defines `numpy_input_fn` and `pandas_input_fn`, which feed arrays or the rows of a DataFrame."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from estimator_bridge import errors
from estimator_bridge.canned.queues.row_queue import array_rows, frame_rows, next_batch
from estimator_bridge.legacy.requirements import class_names
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
    """Makes an input_fn that feeds arrays through a queue in the graph.

    Args:
        x: the features: an array, [rows, ...], or a dict of such arrays.
        y: the labels: an array or a dict of arrays, like x; None without labels.
        batch_size: rows per batch; with `num_epochs` the last batch may be smaller.
        num_epochs: the number of passes over the rows; None repeats them without end.
        shuffle: whether the rows come in random order; must be given.
        queue_capacity: how many rows the queue can hold.
        num_threads: how many threads fill the queue.

    Returns:
        A function that returns features, or (features, labels), in the structures of x and y.

    Raises:
        InvalidInput: `shuffle` is not a bool. Calls of the returned function raise it if arrays are
            missing, empty or of different lengths, or if a key is both a feature and a label.
        WrongType: x is neither an array nor a dict (raised when the function is called).
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


def pandas_input_fn(
    x: Object,
    y: Object = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int | None = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Nest]:
    """Makes an input_fn that feeds the rows of a DataFrame through a queue in the graph.

    Arguments that are not listed are the same as in `numpy_input_fn`.

    Args:
        x: a DataFrame, whose columns are the features.
        y: the labels: a Series, or a DataFrame whose columns are several labels. The index must be
            that of x.
        queue_capacity: None means the number of rows, times four with `shuffle`.
        target_column: a name for the labels inside the queue; must not be the name of a feature.

    Raises:
        InvalidInput: `shuffle` is not a bool; x and y have different indices; `target_column` is a
            feature.
        WrongType: `target_column` is not a str, or x is not a DataFrame.
    """
    check_shuffle(shuffle)
    if not isinstance(target_column, str):
        raise errors.WrongType(f"target_column must be a string type, got {target_column!r}.")
    if "DataFrame" not in class_names(x):
        raise errors.WrongType(f"x must be a pandas DataFrame, got {type(x).__name__}.")
    frame, labels = _joined(x, y, target_column)
    capacity = queue_capacity or (4 if shuffle else 1) * len(frame)

    def input_fn() -> Nest:
        columns = next_batch(
            frame_rows(frame),
            batch_size,
            capacity,
            shuffle=bool(shuffle),
            num_epochs=num_epochs,
            num_threads=num_threads,
            min_after_dequeue=max(capacity / 4, 1),
        )
        features = dict(zip(frame.columns, columns, strict=True))
        fed_labels = {key: features.pop(column) for key, column in labels.items()}
        if y is None:
            return features
        return features, fed_labels if "DataFrame" in class_names(y) else fed_labels[target_column]

    return input_fn


def _joined(x: Object, y: Object, target_column: str) -> tuple[Object, dict[str, str]]:
    frame = x.copy()
    if y is None:
        return frame, {}
    if target_column in frame:
        raise errors.InvalidInput(
            f"target_column={target_column!r} is a feature, too; features are "
            f"{list(frame.columns)}. Give it another name."
        )
    if not np.array_equal(frame.index, getattr(y, "index", None)):
        raise errors.InvalidInput(
            f"Index for x and y are mismatched. x has {frame.index!r}, y has "
            f"{getattr(y, 'index', None)!r}."
        )
    if "DataFrame" not in class_names(y):
        frame[target_column] = y
        return frame, {target_column: target_column}
    columns = {
        name: f"{name}_{uuid.uuid4()}" if name in frame else name for name in list(y.columns)
    }
    frame[list(columns.values())] = y
    return frame, columns
