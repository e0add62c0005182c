"""A queue runner whose enqueue ops are fed by Python functions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from tf2_engine import log
from tf2_engine.types import Array, Object, Op, Session, Tensor

Feed = Callable[[], Mapping[Tensor, Array]]
"""Returns the next rows by placeholder; raises OutOfRangeError when there are no more."""


class FeedingRunner(tf.train.QueueRunner):
    """Fills a queue from Python, with one thread per enqueue op; the last thread to end closes it.

    Args:
        feeds: for each op, the function that returns its feed dict.
    """

    def __init__(self, queue: Object, enqueue_ops: Sequence[Op], feeds: Sequence[Feed]) -> None:
        super().__init__(
            queue,
            list(enqueue_ops),
            queue_closed_exception_types=(tf.errors.OutOfRangeError, tf.errors.CancelledError),
        )
        self._feeds = list(feeds)
        self._guard = threading.Lock()
        self._running: dict[Session, int] = {}
        self._failures: list[Exception] = []

    @property
    def exceptions_raised(self) -> list[Exception]:
        """The errors that threads without a coordinator raised since the last `create_threads`."""
        return self._failures

    def create_threads(
        self,
        sess: Session,
        coord: tf.train.Coordinator | None = None,
        daemon: bool = False,
        start: bool = False,
    ) -> list[threading.Thread]:
        """Creates the threads that fill the queue; none if they already run in this session."""
        with self._guard:
            if self._running.get(sess):
                return []
            self._running[sess] = len(self.enqueue_ops)
            self._failures = []
        threads = [
            threading.Thread(target=self._fill, args=(sess, op, feed, coord))
            for op, feed in zip(self.enqueue_ops, self._feeds, strict=True)
        ]
        if coord is not None:
            threads.append(threading.Thread(target=self._cancel_at_stop, args=(sess, coord)))
        for thread in threads:
            if coord is not None:
                coord.register_thread(thread)
            thread.daemon = daemon
            if start:
                thread.start()
        return threads

    def _fill(
        self, session: Session, op: Op, feed: Feed, coord: tf.train.Coordinator | None
    ) -> None:
        try:
            while coord is None or not coord.should_stop():
                session.run(op, feed())
        except self.queue_closed_exception_types:
            self._end(session, close=True)
        except Exception as error:  # any error of a feed must end the step, not only the thread
            self._end(session, close=False)
            if coord is not None:
                coord.request_stop(error)
            else:
                log.error("A thread that fills a queue failed: %s", error)
                self._failures.append(error)
                raise
        else:
            self._end(session, close=False)

    def _end(self, session: Session, close: bool) -> None:
        """Closes the queue if this was the last thread and it found no more rows."""
        with self._guard:
            self._running[session] -= 1
            is_last = self._running[session] == 0
        if close and is_last:
            # If the session is closed by now, there is no queue to close.
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                session.run(self.close_op)

    def _cancel_at_stop(self, session: Session, coord: tf.train.Coordinator) -> None:
        coord.wait_for_stop()
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            session.run(self.cancel_op)
