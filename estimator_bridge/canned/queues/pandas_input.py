"""`pandas_input_fn`: batches of a pandas DataFrame."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import numpy as np

from estimator_bridge import errors
from estimator_bridge.canned.queues.numpy_input import check_shuffle
from estimator_bridge.canned.queues.row_queue import frame_rows, next_batch
from estimator_bridge.legacy.requirements import class_names
from tf2_engine.types import Nest, Object


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
    """Makes an input_fn that feeds the rows of a DataFrame through a queue of the graph.

    The other arguments are the same as in `numpy_input_fn`.

    Args:
        x: a DataFrame, whose columns are the features.
        y: labels: a Series, or a DataFrame for labels by name, with the index of x.
        queue_capacity: the size of the queue; None means the number of rows, times four with
            `shuffle`.
        target_column: the name of the labels in the queue, which no feature may have.

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
    """Copies x with the labels as additional columns; also returns the column of each label."""
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
