"""Ends the chief when a task stops answering because its machine froze or is lost.

Sessions recover when a process dies, but if a machine freezes they wait forever, and cannot even
be cancelled. So a thread polls every task. The program that restarts tasks must restart the chief,
too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.cluster.tasks import Cluster
from tf2_engine import log

VARIABLE = "ESTIMATOR_BRIDGE_TASK_SECONDS"
"""The environment variable that says for how many seconds a task may be silent."""

PATIENCE_SECONDS = 300.0
"""The default of `VARIABLE`. Temporary problems are shorter: a virtual machine that migrates pauses
for seconds, TCP retries for a minute or two, and TensorFlow's import takes up to a minute.
"""

STATUS = os.EX_TEMPFAIL
"""Exit status 75: a program that is started again will continue from its last checkpoint."""

_ASKS_PER_PATIENCE = 10
_LONGEST_INTERVAL = 10.0  # seconds between two polls of a task


@dataclasses.dataclass
class Watched:
    """A task of a cluster."""

    name: str
    address: str
    device: str
    silent: float | None = None  # seconds without an answer; None before the first one


class Silences:
    """Measures how long tasks are silent. A task that has never answered has not started yet.

    Each call of `add` counts two intervals at most, so a time in which the chief itself was frozen
    does not count.
    """

    def __init__(self, tasks: Sequence[Watched], patience: float) -> None:
        self.tasks, self.patience = tasks, patience
        self.interval = min(patience / _ASKS_PER_PATIENCE, _LONGEST_INTERVAL)

    def add(self, seconds: float) -> Watched | None:
        for task in self.tasks:
            if task.silent is not None:
                task.silent += min(seconds, 2 * self.interval)
                if task.silent > self.patience:
                    return task
        return None


def patience_seconds() -> float | None:
    """Reads how long a task may be silent. Returns None if `VARIABLE` is 0, which means forever."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or PATIENCE_SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise errors.InvalidInput(
            f"${VARIABLE}={text!r} is not a number of seconds. Set it to a number, or to 0 to wait "
            f"forever, or unset it for the default of {PATIENCE_SECONDS:g} seconds."
        )
    return seconds or None


@contextlib.contextmanager
def watching(cluster: Cluster | None) -> Iterator[None]:
    """Watches the other tasks of a cluster; if one is silent for too long, exits with `STATUS`."""
    patience = patience_seconds()
    if cluster is None or patience is None:
        yield
        return
    cluster.target()  # starts the server in a single thread
    tasks = [Watched(*each) for each in cluster.others()]
    ended = threading.Event()
    silences = Silences(tasks, patience)
    threads = [
        threading.Thread(target=_ask, args=(cluster, task, silences.interval, ended), daemon=True)
        for task in tasks
    ]
    threads.append(threading.Thread(target=_watch, args=(silences, ended), daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def _ask(cluster: Cluster, task: Watched, interval: float, ended: threading.Event) -> None:
    while not ended.is_set():
        # If the task dies, a new session waits for its successor.
        with (
            contextlib.suppress(tf.errors.OpError),
            tf.Graph().as_default(),
            cluster.session(task.device) as session,
        ):
            with tf.device(task.device):
                sign_of_life = tf.no_op()
            while not ended.is_set():
                session.run(sign_of_life)
                task.silent = 0.0
                ended.wait(interval)
        ended.wait(min(interval, 1.0))


def _watch(silences: Silences, ended: threading.Event) -> None:
    before = time.monotonic()
    while not ended.wait(silences.interval):
        now = time.monotonic()
        silent = silences.add(now - before)
        before = now
        if silent is not None and not ended.is_set():
            _end(silent, silences.patience)


def _end(task: Watched, patience: float) -> None:
    log.error(
        "The task %s at %s has not answered for %g s: its machine is frozen or lost, or nothing "
        "has started it again. This process ends, because a step that waits for the task "
        "cannot be cancelled. End the task, start it at its address, and start this program again: "
        "it goes on from the last checkpoint. $%s sets this limit in seconds.",
        task.name,
        task.address,
        patience,
        VARIABLE,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STATUS)
