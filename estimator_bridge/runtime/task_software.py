"""Versions of the tasks of a cluster, which must be equal, and whether these have the native ops.

A task that serves loads the native ops before its server listens, and says what it has. The chief
asks when it builds a step: a graph that has a native op on a task without it would be refused.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.tasks import Cluster
from tf2_engine import log
from tf2_engine.native import loading, source_digest

_NAME = "estimator_bridge/software"  # of what a task says


class Software(NamedTuple):
    """The version of TensorFlow of a task, its native sources, and whether it has loaded these."""

    tensorflow: str
    native_sources: str
    has_native_ops: bool


def serve(cluster: Cluster) -> None:
    """Serves as a task of a cluster until the chief ends; says first what this process runs."""
    software = of_this_process()
    cluster.target()
    _say(cluster.key, software)
    cluster.serve()


def of_this_process() -> Software:
    """Returns the software of this process; compiles the native ops if they are to be used."""
    has_native_ops = loading.host_ops() is not None
    return Software(tf.version.VERSION, source_digest(), has_native_ops)


def native_devices(cluster: Cluster) -> frozenset[str]:
    """Returns the devices of the tasks that have the native ops; none if this process has not.

    Waits for tasks that have not started yet, as every session does.

    Raises:
        InvalidInput: a task runs another version of the package, or of TensorFlow.
    """
    here = of_this_process()
    if not here.has_native_ops:
        return frozenset()
    others = cluster.others()
    devices = {cluster.own}
    for (name, address, device), software in zip(others, _ask(cluster, others), strict=True):
        if software[:2] != here[:2]:
            raise errors.InvalidInput(
                f"The task {name} at {address} has TensorFlow {software.tensorflow} and native "
                f"sources {software.native_sources}, but the chief {here.tensorflow} and "
                f"{here.native_sources}. Install the same versions of TensorFlow and of "
                "estimator-bridge in all tasks."
            )
        if software.has_native_ops:
            devices.add(device)
    log.info("Native ops are on %d of %d tasks.", len(devices), 1 + len(others))
    return frozenset(devices)


@functools.cache
def _say(key: str, software: Software) -> None:
    cluster = Cluster.of_key(key)
    with tf.Graph().as_default(), tf.device(cluster.own):
        say = tf.raw_ops.Stage(values=[json.dumps(software)], shared_name=_NAME)
        with cluster.session(cluster.own) as session:
            session.run(say)


def _ask(cluster: Cluster, others: Sequence[tuple[str, str, str]]) -> list[Software]:
    """Returns the software of each of the tasks, in their order."""
    cluster.target()  # one thread starts the server
    answers: dict[str, Software | Exception] = {}

    def ask(device: str) -> None:
        while device not in answers:
            try:
                answers[device] = _answer(cluster, device)
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                time.sleep(0.5)  # it ends just now, or starts
            except Exception as error:  # for the thread that waits
                answers[device] = error

    threads = [threading.Thread(target=ask, args=(device,), daemon=True) for _, _, device in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(1.0)  # in turns, so that signals are handled
    return [_of(answers[device]) for _, _, device in others]


def _of(answer: Software | Exception) -> Software:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(cluster: Cluster, device: str) -> Software:
    with tf.Graph().as_default(), tf.device(device):
        (text,) = tf.raw_ops.StagePeek(index=0, dtypes=[tf.string], shared_name=_NAME)
        with cluster.session(device) as session:
            return Software(*json.loads(session.run(text)))
