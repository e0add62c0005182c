"""`numpy_input_fn` and `pandas_input_fn`: feed rows from memory through a queue in the graph."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import class_names
from tf2_engine import log
from tf2_engine.types import Array, Nest, Object, Op, Session, Tensor

MemoryArrays: TypeAlias = Array | Mapping[str, Array]

_WHOLE_INPUT = "__direct_np_input__"
_TARGET = "__target_key__"


def numpy_input_fn(
    x: MemoryArrays,
    y: MemoryArrays | None = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Nest]:
    """Makes an input_fn that feeds arrays through a queue in the graph.

    Args:
        x: the features, as an array, [rows, ...], or a dict of such arrays.
        y: the labels, as an array or a dict of arrays, like x; None if there are no labels.
        batch_size: rows per batch; with `num_epochs` the last batch may be smaller.
        num_epochs: the number of passes over the rows; None repeats the rows without end.
        shuffle: whether the rows come in random order; must be given.
        queue_capacity: how many rows the queue can hold.
        num_threads: how many threads fill the queue.

    Raises:
        InvalidInput: `shuffle` is not a bool. Calls to the returned function raise it if arrays are
            missing, empty or of different lengths, or if a key is both a feature and a label.
        WrongType: x is neither an array nor a dict (raised when the function is called).
    """
    check_shuffle(shuffle)

    def input_fn() -> Nest:
        features, labels = _features(x), _labels(x, y)
        _check_lengths(features, labels)
        arrays = [*features.values(), *labels.values()]
        columns = next_batch(
            [np.arange(len(arrays[0])), *arrays],
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
        fed_labels = dict(zip(labels, in_y, strict=True)) if isinstance(y, Mapping) else in_y[0]
        return fed_features, fed_labels

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


def _labels(x: MemoryArrays, y: MemoryArrays | None) -> dict[str, Array]:
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
            "different keys."
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
    """Makes an input_fn that feeds the rows of a DataFrame; otherwise like `numpy_input_fn`.

    Args:
        x: a DataFrame, whose columns are the features.
        y: the labels, as a Series, or as a DataFrame with a column for each label. The index of y
            must equal the index of x.
        queue_capacity: None means the number of rows, or four times that number with `shuffle`.
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
            [
                np.asarray(frame.index.values),
                *(_array_of(frame[name], name) for name in frame.columns),
            ],
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
            f"target_column={target_column!r} is also the name of a feature. The features are "
            f"{list(frame.columns)}. Give target_column another name."
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


NextFeed = Callable[[], Mapping[Tensor, Array]]
"""Returns the next rows, keyed by placeholder; raises OutOfRangeError when there are no more."""


class _FeedingSession:
    """Wraps a session; feeds each enqueue op its next rows. Wrappers of one session are equal."""

    def __init__(self, session: Session, feeds: Mapping[Op, NextFeed]) -> None:
        self._session, self._feeds = session, feeds

    def __getattr__(self, name: str) -> Object:
        return getattr(self._session, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FeedingSession) and other._session is self._session

    def __hash__(self) -> int:
        return hash(self._session)

    def make_callable(self, op: Op) -> Callable[[], None]:
        return lambda: self._session.run(op, self._feeds[op]())


class _FeedingRunner(tf.train.QueueRunner):
    def __init__(self, queue: Object, feeds: Mapping[Op, NextFeed]) -> None:
        closed = (tf.errors.OutOfRangeError, tf.errors.CancelledError)
        super().__init__(queue, list(feeds), queue_closed_exception_types=closed)
        self._feeds = feeds

    def create_threads(self, sess: Session, *arguments: Object, **by_name: Object) -> list[Object]:
        return super().create_threads(_FeedingSession(sess, self._feeds), *arguments, **by_name)


def _array_of(column: Object, name: Object) -> Array:
    values = column.values
    if not isinstance(values, np.ndarray):
        kind: Object = getattr(column.dtype, "categories", column)
        kind = getattr(kind.dtype, "numpy_dtype", kind.dtype)
        code = getattr(kind, "kind", "O")
        missing = int(column.isna().sum())
        if missing and code != "f":
            raise errors.InvalidInput(
                f"The column {name!r} has {missing} missing values, which TensorFlow cannot "
                f"represent in the dtype {column.dtype}. Replace them: fillna(0), or fillna('')."
            )
        # Missing floats become NaN.
        options = {"na_value": np.nan} if missing else {}
        is_number = isinstance(kind, np.dtype) and code in "biuf"
        values = column.to_numpy(kind, **options) if is_number else np.asarray(column)
    is_text = values.dtype == object and all(isinstance(each, (str, bytes)) for each in values)
    if values.dtype.kind not in "biufcSU" and not is_text:
        raise errors.InvalidInput(
            f"The column {name!r} of dtype {column.dtype} has values that are neither numbers nor "
            "strings. Convert them: astype('int64'), or astype(str)."
        )
    return values


class _RowFeed:
    """Feeds rows in order. With `random_start` an epoch starts at a random row and wraps around."""

    def __init__(
        self,
        placeholders: Sequence[Tensor],
        columns: Sequence[Array],
        size: int,
        random_start: bool,
        num_epochs: int | None,
    ) -> None:
        self._placeholders, self._columns, self._size = placeholders, columns, size
        self._count = len(columns[0])
        self._next = random.Random().randrange(self._count) if random_start else 0
        self._left = None if num_epochs is None else num_epochs * self._count

    def __call__(self) -> dict[Tensor, Array]:
        size = self._size if self._left is None else min(self._size, self._left)
        if size == 0:
            raise tf.errors.OutOfRangeError(None, None, "All epochs were fed.")
        rows = [(self._next + place) % self._count for place in range(size)]
        self._next = (rows[-1] + 1) % self._count
        if self._left is not None:
            self._left -= size
        values = (column[rows] for column in self._columns)
        return dict(zip(self._placeholders, values, strict=True))


def next_batch(
    columns: Sequence[Array],
    batch_size: int,
    capacity: int,
    *,
    shuffle: bool,
    num_epochs: int | None,
    num_threads: int,
    min_after_dequeue: float | None = None,
) -> list[Tensor]:
    """Makes a batch from a queue that threads of the session fill with rows.

    The first column, the index of the rows, is not a part of the batch. There are as many ops as in
    stock's queues, because TensorFlow derives seeds from the number of ops. With `shuffle`, the
    queue keeps at least `min_after_dequeue` rows, by default a quarter of the capacity.
    """
    _warn_of_threads(num_threads, shuffle, num_epochs)
    with tf.name_scope("enqueue_input"):
        dtypes = [tf.as_dtype(column.dtype) for column in columns]
        shapes = [column.shape[1:] for column in columns]
        if shuffle:
            least = int(capacity / 4 if min_after_dequeue is None else min_after_dequeue)
            queue = tf.queue.RandomShuffleQueue(capacity, least, dtypes=dtypes, shapes=shapes)
        else:
            least = 0
            queue = tf.queue.FIFOQueue(capacity, dtypes=dtypes, shapes=shapes)
        feeds = {}
        for _ in range(num_threads):
            placeholders = [tf.placeholder(dtype) for dtype in dtypes]
            feed = _RowFeed(placeholders, columns, batch_size, shuffle, num_epochs)
            feeds[queue.enqueue_many(placeholders)] = feed
        tf.train.add_queue_runner(_FeedingRunner(queue, feeds))
        filled = tf.cast(tf.maximum(0, queue.size() - least), tf.float32)
        room = capacity - least
        tf.summary.scalar(
            f"queue/{queue.name}fraction_over_{least}_of_{room}_full", filled * (1.0 / room)
        )
    dequeue = queue.dequeue_many if num_epochs is None else queue.dequeue_up_to
    _, *batch = dequeue(batch_size)
    return batch


def _warn_of_threads(num_threads: int, shuffle: bool, num_epochs: int | None) -> None:
    if num_threads > 1 and num_epochs is not None:
        log.warning(
            "num_threads=%d and num_epochs=%d: each thread feeds all epochs, so the model sees "
            "each row once per thread and epoch.",
            *(num_threads, num_epochs),
        )
    if num_threads > 1 and not shuffle:
        log.warning(
            "num_threads=%d and shuffle=False: the threads' rows mix, so their order differs from "
            "run to run. Use one thread, or shuffle.",
            num_threads,
        )
