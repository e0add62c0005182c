"""Queues of rows: where an input function takes its batches from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.canned.queues.feeding_runner import FeedingRunner
from tf2_engine import log
from tf2_engine.types import Array, DType, Object, Tensor


class Rows(Protocol):
    """Data in memory: columns of equal length, after the number of each row.

    Attributes:
        dtypes, shapes: of one row's values.
        length: how many rows there are.
    """

    dtypes: list[DType]
    shapes: list[tuple[int, ...]]
    length: int

    def take(self, rows: list[int]) -> list[Array]:
        """Returns the values of some rows, one array for each dtype."""


class ArrayRows:
    """Numpy arrays by name, whose first axes are the rows; the first value is the row's number."""

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._columns = list(columns.values())
        self.length = len(self._columns[0])
        self.dtypes = [tf.int64, *(tf.as_dtype(column.dtype) for column in self._columns)]
        self.shapes: list[tuple[int, ...]] = [(), *(column.shape[1:] for column in self._columns)]

    def take(self, rows: list[int]) -> list[Array]:
        """Returns the numbers of the rows, and their part of each array."""
        return [np.asarray(rows), *(column[rows] for column in self._columns)]


class FrameRows:
    """A pandas DataFrame, whose columns hold scalars; the first value is that of its index."""

    def __init__(self, frame: Object) -> None:
        self._frame = frame
        self.length = len(frame)
        self.dtypes = [tf.as_dtype(kind) for kind in (frame.index.dtype, *frame.dtypes)]
        self.shapes: list[tuple[int, ...]] = [()] * len(self.dtypes)

    def take(self, rows: list[int]) -> list[Array]:
        """Returns the index of the rows, and their part of each column."""
        part = self._frame.iloc[rows]
        return [part.index.values, *(part[name].values for name in part.columns)]


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


def row_queue(
    rows: Rows,
    capacity: int,
    *,
    shuffle: bool,
    enqueue_size: int,
    num_epochs: int | None,
    num_threads: int = 1,
    min_after_dequeue: float | None = None,
) -> Object:
    """Returns a queue in the default graph that threads of the session fill with rows.

    The ops, and their number, are those of stock's queues: by the number of ops before them
    TensorFlow seeds random ops that have no seed of their own.

    Args:
        capacity: the rows that the queue holds at most.
        shuffle: takes rows at random from those in the queue, of which there are then at least
            `min_after_dequeue`, by default a quarter of the capacity.
        enqueue_size: how many rows are put into it at a time.
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
            feeds.append(_RowFeed(placeholders, rows, enqueue_size, shuffle, num_epochs))
        tf.train.add_queue_runner(FeedingRunner(queue, enqueue_ops, feeds))
        filled = tf.cast(tf.maximum(0, queue.size() - least), tf.float32)
        room = capacity - least
        tf.summary.scalar(
            f"queue/{queue.name}fraction_over_{least}_of_{room}_full", filled * (1.0 / room)
        )
    return queue


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
