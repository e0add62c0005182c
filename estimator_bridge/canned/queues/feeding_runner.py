"""A queue runner whose enqueue ops are fed by Python functions."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from tf2_engine.types import Array, Object, Op, Session, Tensor

Feed = Callable[[], Mapping[Tensor, Array]]
"""Returns the next rows by placeholder; raises OutOfRangeError when there are no more."""


class FeedingRunner(tf.train.QueueRunner):
    """Fills a queue from Python, one thread for each enqueue op; the last to end closes it.

    Args:
        queue: the queue.
        enqueue_ops: ops that put rows into it.
        feeds: for each op the function that returns what it is fed with.
    """

    def __init__(self, queue: Object, enqueue_ops: Sequence[Op], feeds: Sequence[Feed]) -> None:
        super().__init__(
            queue,
            list(enqueue_ops),
            queue_closed_exception_types=(tf.errors.OutOfRangeError, tf.errors.CancelledError),
        )
        self._feeds = list(feeds)

    def create_threads(
        self,
        sess: Session,
        coord: tf.train.Coordinator | None = None,
        daemon: bool = False,
        start: bool = False,
    ) -> list[threading.Thread]:
        """Returns the threads that fill the queue; none where they run in this session already."""
        session = _FeedingSession(sess, dict(zip(self.enqueue_ops, self._feeds, strict=True)))
        threads: list[threading.Thread] = super().create_threads(session, coord, daemon, start)
        return threads


@dataclasses.dataclass(frozen=True)
class _FeedingSession:
    """A session as a queue runner uses it, whose enqueue ops are fed; equal for equal sessions."""

    session: Session
    feeds: Mapping[Op, Feed] = dataclasses.field(compare=False)

    def make_callable(self, op: Op) -> Callable[[], Object]:
        """Returns a function that runs an enqueue op with its next rows."""
        feed = self.feeds[op]
        return lambda: self.session.run(op, feed())

    def run(self, op: Op) -> Object:
        """Runs the op that closes the queue."""
        return self.session.run(op)
