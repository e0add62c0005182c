"""Queues of rows: where an input function takes its batches from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.queues.feeding_runner import FeedingRunner
from tf2_engine import log
from tf2_engine.types import Array, DType, Object, Tensor


class Rows(NamedTuple):
    """Data in memory: columns of equal length, after the number of each row.

    Attributes:
        length: how many rows there are.
        dtypes, shapes: of one row's values.
        take: returns the values of the rows with some numbers, one array for each dtype.
    """

    length: int
    dtypes: list[DType]
    shapes: list[tuple[int, ...]]
    take: Callable[[list[int]], list[Array]]


def array_rows(columns: Sequence[Array]) -> Rows:
    """Returns the rows of numpy arrays, along their first axes."""

    def take(rows: list[int]) -> list[Array]:
        return [np.asarray(rows), *(column[rows] for column in columns)]

    dtypes = [tf.int64, *(tf.as_dtype(column.dtype) for column in columns)]
    return Rows(len(columns[0]), dtypes, [(), *(column.shape[1:] for column in columns)], take)


def frame_rows(frame: Object) -> Rows:
    """Returns the rows of a pandas DataFrame of scalars; their numbers are those of its index."""
    columns = [
        np.asarray(frame.index.values),
        *(_array_of(frame[name], name) for name in frame.columns),
    ]

    def take(rows: list[int]) -> list[Array]:
        return [column[rows] for column in columns]

    dtypes = [tf.as_dtype(column.dtype) for column in columns]
    return Rows(len(frame), dtypes, [()] * len(dtypes), take)


def _array_of(column: Object, name: Object) -> Array:
    """Returns the values of a column of pandas as an array with a dtype that TensorFlow has.

    pandas has dtypes of its own: strings, categories, numbers that may be missing, Arrow's.

    Raises:
        InvalidInput: TensorFlow has no such values, or one is missing that is no float.
    """
    values = column.values
    if not isinstance(values, np.ndarray):
        kind: Object = getattr(column.dtype, "categories", column)
        kind = getattr(kind.dtype, "numpy_dtype", kind.dtype)
        code = getattr(kind, "kind", "O")
        missing = int(column.isna().sum())
        if missing and code != "f":
            raise errors.InvalidInput(
                f"The column {name!r} lacks {missing} values; TensorFlow has no missing value for "
                f"the dtype {column.dtype}. Replace them: fillna(0), or fillna('')."
            )
        # A float that is missing is NaN then.
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
    """Feeds consecutive rows, over and over: the rows of `num_epochs` epochs, or without end.

    With `random_start` an epoch begins at any row, and ends at the one before it.
    """

    def __init__(
        self,
        placeholders: Sequence[Tensor],
        rows: Rows,
        size: int,
        random_start: bool,
        num_epochs: int | None,
    ) -> None:
        self._placeholders, self._rows, self._size = placeholders, rows, size
        self._next = random.Random().randrange(rows.length) if random_start else 0
        self._left = None if num_epochs is None else num_epochs * rows.length

    def __call__(self) -> dict[Tensor, Array]:
        size = self._size if self._left is None else min(self._size, self._left)
        if size == 0:
            raise tf.errors.OutOfRangeError(None, None, "All epochs were fed.")
        numbers = [(self._next + place) % self._rows.length for place in range(size)]
        self._next = (numbers[-1] + 1) % self._rows.length
        if self._left is not None:
            self._left -= size
        return dict(zip(self._placeholders, self._rows.take(numbers), strict=True))


def next_batch(
    rows: Rows,
    batch_size: int,
    capacity: int,
    *,
    shuffle: bool,
    num_epochs: int | None,
    num_threads: int,
    min_after_dequeue: float | None = None,
) -> list[Tensor]:
    """Returns the columns of a batch, from a queue that threads of the session fill with rows.

    The ops, and their number, are those of stock's queues: by the number of ops before them
    TensorFlow seeds random ops that have no seed of their own.

    Args:
        batch_size: rows per batch, and how many are put into the queue at a time; with
            `num_epochs` the last batch may be smaller.
        capacity: the rows that the queue holds at most.
        shuffle: takes rows at random from those in the queue, of which there are then at least
            `min_after_dequeue`, by default a quarter of the capacity.
        num_epochs: how often each thread goes through the rows; None is without end.
    """
    _warn_of_threads(num_threads, shuffle, num_epochs)
    with tf.name_scope("enqueue_input"):
        if shuffle:
            least = int(capacity / 4 if min_after_dequeue is None else min_after_dequeue)
            queue = tf.queue.RandomShuffleQueue(
                capacity, least, dtypes=rows.dtypes, shapes=rows.shapes
            )
        else:
            least = 0
            queue = tf.queue.FIFOQueue(capacity, dtypes=rows.dtypes, shapes=rows.shapes)
        enqueue_ops, feeds = [], []
        for _ in range(num_threads):
            placeholders = [tf.placeholder(dtype) for dtype in rows.dtypes]
            enqueue_ops.append(queue.enqueue_many(placeholders))
            feeds.append(_RowFeed(placeholders, rows, batch_size, shuffle, num_epochs))
        tf.train.add_queue_runner(FeedingRunner(queue, enqueue_ops, feeds))
        filled = tf.cast(tf.maximum(0, queue.size() - least), tf.float32)
        room = capacity - least
        tf.summary.scalar(
            f"queue/{queue.name}fraction_over_{least}_of_{room}_full", filled * (1.0 / room)
        )
    dequeue = queue.dequeue_many if num_epochs is None else queue.dequeue_up_to
    _, *columns = dequeue(batch_size)
    return columns


def _warn_of_threads(num_threads: int, shuffle: bool, num_epochs: int | None) -> None:
    if num_threads > 1 and num_epochs is not None:
        log.warning(
            "num_threads=%d and num_epochs=%d: each thread goes through the data that often.",
            *(num_threads, num_epochs),
        )
    if num_threads > 1 and not shuffle:
        log.warning(
            "num_threads=%d and shuffle=False: the threads' rows mix, so that their order differs "
            "from run to run. Use one thread, or shuffle.",
            num_threads,
        )
