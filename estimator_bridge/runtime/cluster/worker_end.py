"""Ends a worker with its own training loop when the chief or the worker's program ends."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator

from estimator_bridge.runtime.cluster.tasks import LEAVING_SECS, Cluster
from tf2_engine import log


class ChiefHasEnded(Exception):
    """The chief's program has ended, so nothing initializes or saves variables any more."""


class WorkerEnd:
    """Waits for the end of the chief, and tells the chief when this worker stops training.

    Parameter servers serve until all workers have left. If the worker's step does not end in time
    after the chief, the process exits, because nothing it computes would be saved.

    Attributes:
        come: set once the chief has ended.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.come = threading.Event()
        self._training = threading.Lock()
        cluster.target()  # the chief has to be able to reach this task
        self._thread = threading.Thread(
            target=self._leave, daemon=True, name="estimator_bridge end of the worker"
        )
        self._thread.start()
        atexit.register(self._leave_at_exit)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Makes the chief wait for this worker. Raises ChiefHasEnded if the chief has ended."""
        if not self._training.acquire(blocking=False):
            raise ChiefHasEnded
        try:
            yield
        finally:
            self._training.release()

    def _leave(self) -> None:
        self._cluster.wait_for_end()
        self.come.set()
        if not self._training.acquire(timeout=LEAVING_SECS):
            log.warning(
                "The chief has ended. %s %d exits, because its step did not end within %g seconds.",
                *(self._cluster.task_type, self._cluster.task_id, LEAVING_SECS),
            )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # A session that waits for other tasks cannot be interrupted.
        self._cluster.say_left()

    def _leave_at_exit(self) -> None:
        if not self.come.is_set():
            self._cluster.tell_own()
        self._thread.join(LEAVING_SECS)


@functools.cache
def end_of(cluster: Cluster) -> WorkerEnd:
    return WorkerEnd(cluster)
