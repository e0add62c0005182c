"""Lets each task of a cluster report its versions, its TF_CONFIG, and whether it has native ops.

The chief asks every task in every session, because a restarted task may be on another machine.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.tf_config import TaskType
from estimator_bridge.runtime.cluster.tasks import Cluster
from estimator_bridge.version import __version__
from tf2_engine import log
from tf2_engine.native import loading, source_digest
from tf2_engine.types import Session

_NAME = "estimator_bridge/software"  # name of the queue that contains a task's report
_SECONDS_OF_SILENCE = 30.0  # after this time the log names the tasks that have not started


class TaskReport(NamedTuple):
    """What a task reports about its software. Older versions do not report `tasks` and `trains`."""

    tensorflow: str = "unknown"
    package: str = "unknown"
    native_sources: str = "unknown"
    has_native_ops: bool | str = "unknown"
    tasks: Mapping[str, Sequence[str]] | None = None  # the addresses in TF_CONFIG, by job
    trains: bool | None = None  # whether the task runs its own training loop (use_tpu=False)

    @classmethod
    def from_json(cls, text: str) -> TaskReport:
        answer = json.loads(text)
        return cls(**{field: answer[field] for field in cls._fields if field in answer})

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    def versions(self) -> str:
        return (
            f"TensorFlow {self.tensorflow} and estimator-bridge {self.package} (native sources "
            f"{self.native_sources})"
        )


def serve(cluster: Cluster) -> None:
    report = of_this_process()._replace(tasks=cluster.tasks, trains=False)
    cluster.target()
    _say(cluster, report)
    cluster.serve()


def say_that_it_trains(cluster: Cluster) -> None:
    versions = tf.version.VERSION, __version__, source_digest()
    _say(cluster, TaskReport(*versions, False, cluster.tasks, trains=True))


def of_this_process() -> TaskReport:
    has_native_ops = loading.host_ops() is not None
    return TaskReport(tf.version.VERSION, __version__, source_digest(), has_native_ops)


def native_devices(cluster: Cluster) -> frozenset[str]:
    """Waits for all tasks; lists the devices with native ops.

    If this process has no native ops, the list is empty. Raises InvalidInput if a task trains by
    itself, or has different versions or a different TF_CONFIG.
    """
    devices = _devices_with_native_ops(cluster)
    log.info("Native ops are on %d of %d tasks.", len(devices), 1 + len(cluster.others()))
    return devices


class SameSoftwareHook(tf.train.SessionRunHook):
    """Ends training if a restarted task lacks native ops that the task's part of the step needs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def begin(self) -> None:
        ops = tf.get_default_graph().get_operations()
        self._needed = {op.device for op in ops if loading.is_host_op(op.type)}

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        lacking = self._needed - _devices_with_native_ops(self._cluster)
        for name, address, device in self._cluster.others():
            if device in lacking:
                raise errors.InvalidInput(
                    f"The task {name} at {address} was started again without the native ops, "
                    "which the chief's step uses on this task. Start the task in an environment in "
                    "which these ops load (`estimator-bridge doctor` shows whether they do), or "
                    "start the chief again: the chief then continues from the last checkpoint with "
                    "TensorFlow's ops on that task."
                )


def _devices_with_native_ops(cluster: Cluster) -> frozenset[str]:
    here = of_this_process()
    others = cluster.others()
    devices = {cluster.own_device}
    for (name, address, device), report in zip(others, _ask(cluster, others), strict=True):
        if report[:3] != here[:3]:
            raise errors.InvalidInput(
                f"The task {name} at {address} has {report.versions()}, but the chief has "
                f"{here.versions()}. Install the same versions of TensorFlow and of "
                "estimator-bridge in all tasks."
            )
        _check_config(cluster, f"{name} at {address}", report)
        if report.has_native_ops:
            devices.add(device)
    return frozenset(devices) if here.has_native_ops else frozenset()


def _check_config(cluster: Cluster, name: str, report: TaskReport) -> None:
    if report.tasks is not None:
        # An evaluator is outside the cluster and need not be listed.
        jobs = sorted((report.tasks.keys() | cluster.tasks.keys()) - {TaskType.EVALUATOR})
        differing = [job for job in jobs if report.tasks.get(job) != cluster.tasks.get(job)]
        if differing:
            there, here = (
                {job: list(each.get(job, ())) for job in differing}
                for each in (report.tasks, cluster.tasks)
            )
            raise errors.InvalidInput(
                f"The task {name} has a different cluster in TF_CONFIG: {there}, but the chief has "
                f'{here}. Start all tasks with the same "cluster".'
            )
    if report.trains:
        raise errors.InvalidInput(
            f"The task {name} trains by itself, without use_tpu=True, but the chief trains on its "
            "workers, with use_tpu=True. Start the same program with the same arguments in all "
            "tasks, or `estimator-bridge serve` in the workers."
        )


def _say(cluster: Cluster, report: TaskReport) -> None:
    with tf.Graph().as_default(), tf.device(cluster.own_device):
        clear = tf.raw_ops.StageClear(dtypes=[tf.string], shared_name=_NAME)
        with tf.control_dependencies([clear]):
            say = tf.raw_ops.Stage(values=[report.to_json()], shared_name=_NAME)
        with cluster.session(cluster.own_device) as session:
            session.run(say)


def _ask(cluster: Cluster, others: Sequence[tuple[str, str, str]]) -> list[TaskReport]:
    cluster.target()  # starts the server in a single thread
    answers: dict[str, TaskReport | Exception] = {}
    for _, _, device in others:
        arguments = (cluster, device, answers)
        threading.Thread(target=_ask_until_it_serves, args=arguments, daemon=True).start()
    _wait_for(others, answers)
    return [_of(each, answers[each[2]]) for each in others if each[2] in answers]


def _ask_until_it_serves(
    cluster: Cluster, device: str, answers: dict[str, TaskReport | Exception]
) -> None:
    end = time.monotonic() + _SECONDS_OF_SILENCE
    while device not in answers:
        try:
            report = _answer(cluster, device)
            if not report.trains or time.monotonic() > end:
                answers[device] = report
            else:
                time.sleep(0.5)  # the task may be about to finish its own training
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            time.sleep(0.5)  # the task is just ending or starting
        except Exception as error:  # the waiting thread raises it
            answers[device] = error


def _wait_for(
    others: Sequence[tuple[str, str, str]], answers: Mapping[str, TaskReport | Exception]
) -> None:
    named = time.monotonic()
    while waiting := [f"{name} at {address}" for name, address, d in others if d not in answers]:
        if any(isinstance(answer, Exception) for answer in answers.values()):
            return  # the failed task may be the reason why others are silent
        time.sleep(0.05)  # short waits let signals through
        if time.monotonic() - named > _SECONDS_OF_SILENCE:
            named = time.monotonic()
            log.info(
                "Waiting for %s. Each task must run the program, or `estimator-bridge serve`, at "
                "its address, with its place in TF_CONFIG.",
                ", ".join(waiting),
            )


def _of(task: tuple[str, str, str], answer: TaskReport | Exception) -> TaskReport:
    if isinstance(answer, (tf.errors.InvalidArgumentError, tf.errors.NotFoundError)):
        name, address, _ = task
        job, _, index = name.partition(" ")
        raise errors.InvalidInput(
            f"The task at {address} does not answer as {name}: its TF_CONFIG gives it a different "
            'place. End the task, and start it again with the chief\'s "cluster" and with the '
            f'"task" {{"type": "{job}", "index": {index}}}.'
        ) from answer
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(cluster: Cluster, device: str) -> TaskReport:
    with tf.Graph().as_default(), tf.device(device):
        (text,) = tf.raw_ops.StagePeek(index=0, dtypes=[tf.string], shared_name=_NAME)
        with cluster.session(device) as session:
            return TaskReport.from_json(session.run(text))
