"""Versions of the tasks of a cluster, which must be equal, and whether these have the native ops.

A task that serves loads the native ops before its server listens, and reports its software. The
chief asks when it builds a step: a graph that has a native op on a task without it would be
refused. It asks again for each session of a training: a task that was started again may be another
machine.
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
from estimator_bridge.version import __version__
from tf2_engine import log
from tf2_engine.native import loading, source_digest
from tf2_engine.types import Session

_NAME = "estimator_bridge/software"  # of what a task says


class Software(NamedTuple):
    """The versions of a task, its native sources, and whether it has loaded these."""

    tensorflow: str
    package: str
    native_sources: str
    has_native_ops: bool

    @classmethod
    def from_json(cls, text: str) -> Software:
        """Reads the software that a task reports; a field that its version lacks is "unknown"."""
        answer = json.loads(text)
        return cls(*(answer.get(field, "unknown") for field in cls._fields))

    def to_json(self) -> str:
        """Returns the report of a task, as JSON."""
        return json.dumps(self._asdict())

    def versions(self) -> str:
        """Returns the versions as words of a sentence."""
        return (
            f"TensorFlow {self.tensorflow} and estimator-bridge {self.package} (native sources "
            f"{self.native_sources})"
        )


def serve(cluster: Cluster) -> None:
    """Serves as a task of a cluster until the chief ends; says first what this process runs."""
    software = of_this_process()
    cluster.target()
    _say(cluster.key, software)
    cluster.serve()


def of_this_process() -> Software:
    """Returns the software of this process; compiles the native ops if they are to be used."""
    has_native_ops = loading.host_ops() is not None
    return Software(tf.version.VERSION, __version__, source_digest(), has_native_ops)


def native_devices(cluster: Cluster) -> frozenset[str]:
    """Returns the devices of the tasks that have the native ops; none if this process has not.

    Waits for tasks that have not started yet, as every session does.

    Raises:
        InvalidInput: a task runs another version of the package, or of TensorFlow.
    """
    devices = _devices_with_native_ops(cluster)
    log.info("Native ops are on %d of %d tasks.", len(devices), 1 + len(cluster.others()))
    return devices


class SameSoftwareHook(tf.train.SessionRunHook):
    """Ends a training whose step has native ops on a task that no longer has them.

    Before the first step of each session, the first and those after a task was lost; there the step
    itself would fail with TensorFlow's "Op type not registered".
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def begin(self) -> None:
        """Reads from the graph, which is complete, on which tasks native ops are."""
        ops = tf.get_default_graph().get_operations()
        self._needed = {op.device for op in ops if loading.is_host_op(op.type)}

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Raises InvalidInput if a task lacks the native ops, or has another version."""
        lacking = self._needed - _devices_with_native_ops(self._cluster)
        for name, address, device in self._cluster.others():
            if device in lacking:
                raise errors.InvalidInput(
                    f"The task {name} at {address} was started again without the native ops, on "
                    "which the step of the chief is there. Start it where they load "
                    "(`estimator-bridge doctor` says whether), or start the chief again: from the "
                    "last checkpoint it goes on with TensorFlow's ops on that task."
                )


def _devices_with_native_ops(cluster: Cluster) -> frozenset[str]:
    here = of_this_process()
    others = cluster.others()
    devices = {cluster.own_device}
    for (name, address, device), software in zip(others, _ask(cluster, others), strict=True):
        if software[:-1] != here[:-1]:
            raise errors.InvalidInput(
                f"The task {name} at {address} has {software.versions()}, but the chief "
                f"{here.versions()}. Install the same versions of TensorFlow and of "
                "estimator-bridge in all tasks."
            )
        if software.has_native_ops:
            devices.add(device)
    return frozenset(devices) if here.has_native_ops else frozenset()


@functools.cache
def _say(key: str, software: Software) -> None:
    cluster = Cluster.of_key(key)
    with tf.Graph().as_default(), tf.device(cluster.own_device):
        say = tf.raw_ops.Stage(values=[software.to_json()], shared_name=_NAME)
        with cluster.session(cluster.own_device) as session:
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
            return Software.from_json(session.run(text))
