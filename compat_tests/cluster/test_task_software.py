"""The chief checks the software of each task: versions must be equal; native ops are optional.

A task has one server.
"""

from __future__ import annotations

import json
import threading
import time
import types
from typing import Any

import pytest
import tensorflow as tf

import estimator_bridge
from compat_tests.support.local_cluster import free_addresses, start_tasks
from estimator_bridge import errors
from estimator_bridge.runtime.cluster import task_software, tasks
from estimator_bridge.runtime.cluster.task_software import TaskReport
from tf2_engine import log
from tf2_engine.native import loading

OWN = TaskReport(tf.version.VERSION, "1.0", "5eed", True)
of_this_process = task_software.of_this_process


@pytest.fixture(autouse=True)
def _of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_software, "of_this_process", lambda: OWN)


@pytest.fixture(scope="module")
def cluster() -> tasks.Cluster:
    """A chief and two parameter servers in this process."""
    spec = free_addresses(chief=1, ps=2)
    start_tasks(spec, "ps")
    return tasks.Cluster(spec, "chief", 0)


def say(cluster: tasks.Cluster, *of_servers: TaskReport) -> None:
    say_texts(
        cluster,
        *(json.dumps(dict(zip(OWN._fields[:4], report, strict=False))) for report in of_servers),
    )


def say_texts(cluster: tasks.Cluster, *of_servers: str) -> None:
    """Replaces what the parameter servers have said, in the form of any version."""
    for device, answer in zip(cluster.servers, of_servers, strict=True):
        with tf.Graph().as_default(), tf.device(device):
            clear = tf.raw_ops.StageClear(dtypes=[tf.string], shared_name=task_software._NAME)
            text = tf.constant(answer)
            with tf.control_dependencies([clear]):
                stage = tf.raw_ops.Stage(values=[text], shared_name=task_software._NAME)
            with cluster.session(device) as session:
                session.run(stage)


def test_tasks_with_native_ops_are_known(
    cluster: tasks.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have them, and the chief; each chief hears it; none where the chief has none."""
    say(cluster, OWN, OWN._replace(has_native_ops=False))
    for _ in range(2):
        assert task_software.native_devices(cluster) == {cluster.chief, cluster.servers[0]}
    monkeypatch.setattr(
        task_software, "of_this_process", lambda: OWN._replace(has_native_ops=False)
    )
    assert task_software.native_devices(cluster) == frozenset()


@pytest.mark.parametrize("chief_has_native_ops", [True, False])
@pytest.mark.parametrize(
    "other, shown",
    [
        (
            OWN._replace(tensorflow="2.13.0"),
            r"has TensorFlow 2\.13\.0 and estimator-bridge 1\.0 \(",
        ),
        (OWN._replace(package="0.9"), r"estimator-bridge 0\.9 \(native sources 5eed\)"),
        (OWN._replace(native_sources="f00d", has_native_ops=False), "native sources f00d"),
    ],
)
def test_a_task_of_another_version_is_refused(
    other: TaskReport,
    shown: str,
    chief_has_native_ops: bool,
    cluster: tasks.Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its name, its address, and the versions; whatever ops the chief has."""
    chief = OWN._replace(has_native_ops=chief_has_native_ops)
    monkeypatch.setattr(task_software, "of_this_process", lambda: chief)
    say(cluster, OWN, other)
    with pytest.raises(errors.InvalidInput, match=rf"ps 1 at 127\.0\.0\.1:\d+ .*{shown}"):
        task_software.native_devices(cluster)


def test_a_version_that_says_other_things_is_refused(cluster: tasks.Cluster) -> None:
    """What it does not say is unknown; what it says besides is not read."""
    say_texts(cluster, json.dumps({"tensorflow": "3.0", "later": 1}), OWN.to_json())
    with pytest.raises(errors.InvalidInput, match=r"ps 0 at .*3\.0 and estimator-bridge unknown"):
        task_software.native_devices(cluster)


def test_a_task_of_another_cluster_is_refused(cluster: tasks.Cluster) -> None:
    """With its name and the addresses that differ; an evaluator, which is no part, does not count.

    Whatever a task has otherwise in its TF_CONFIG, a step would wait for it without an end.
    """
    with_evaluator = OWN._replace(tasks={**cluster.tasks, "evaluator": ["z:1"]}).to_json()
    say_texts(cluster, OWN._replace(tasks=cluster.tasks).to_json(), with_evaluator)
    assert task_software.native_devices(cluster)

    other_clusters: list[tuple[dict[str, Any], str]] = [
        ({"ps": ["d:1", "e:1"]}, r"\{'ps': \['d:1', 'e:1'\]\}"),
        ({"ps": cluster.tasks["ps"][:1]}, r"\{'ps': \['127"),
        ({"worker": ["b:1"]}, r"\{'worker': \['b:1'\]\}, but the chief has \{'worker': \[\]\}"),
        ({"chief": ["a:1"]}, r"\{'chief': \['a:1'\]\}"),
    ]
    for change, shown in other_clusters:
        other = OWN._replace(tasks={**cluster.tasks, **change}).to_json()
        say_texts(cluster, OWN.to_json(), other)
        with pytest.raises(
            errors.InvalidInput, match=rf"ps 1 at 127\S+ has a different .*: {shown}"
        ):
            task_software.native_devices(cluster)


def test_a_task_in_the_place_of_another_is_refused(cluster: tasks.Cluster) -> None:
    """One that TF_CONFIG gives another number than the chief's is named, with the way out."""
    say(cluster, OWN, OWN)
    crossed = {**free_addresses(chief=1), "ps": cluster.tasks["ps"][::-1]}
    with pytest.raises(errors.InvalidInput, match=r"at 127\S+ does not answer as ps [01]: .*place"):
        task_software.native_devices(tasks.Cluster(crossed, "chief", 0))


def test_a_task_that_trains_by_itself_is_refused(
    cluster: tasks.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it serves soon: a program may train without a TPU first, and then with one."""
    trains = OWN._replace(tasks=cluster.tasks, trains=True).to_json()
    say_texts(cluster, OWN.to_json(), trains)
    timer = threading.Timer(1.0, lambda: say(cluster, OWN, OWN))
    timer.start()
    assert cluster.servers[1] in task_software.native_devices(cluster)
    timer.join()

    monkeypatch.setattr(task_software, "_SECONDS_OF_SILENCE", 0.0)
    say_texts(cluster, OWN.to_json(), trains)
    with pytest.raises(
        errors.InvalidInput, match=r"ps 1 at 127\S+ trains by itself, without use_tpu"
    ):
        task_software.native_devices(cluster)


def test_the_log_names_tasks_that_are_waited_for(
    cluster: tasks.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that runs something else, or nothing, would be waited for without a word."""
    lines: list[str] = []
    monkeypatch.setattr(log, "info", lambda text, *values: lines.append(text % values))
    monkeypatch.setattr(task_software, "_SECONDS_OF_SILENCE", 0.2)
    others = cluster.others()
    answers: dict[str, TaskReport | Exception] = {others[0][2]: OWN}
    timer = threading.Timer(0.5, lambda: answers.update({others[1][2]: OWN}))
    timer.start()
    task_software._wait_for(others, answers)
    timer.join()
    assert lines
    assert lines[0].startswith(f"Waiting for ps 1 at {others[1][1]}. Each task must run")


def test_a_task_that_comes_back_without_native_ops_ends_the_session(
    cluster: tasks.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the graph has some on it; the message names the task, and says what to do."""
    monkeypatch.setattr(loading, "is_host_op", lambda op: op == "NoOp")
    coordinator, hook = tf.train.Coordinator(), task_software.SameSoftwareHook(cluster)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with tf.device(cluster.servers[0]):
            tf.raw_ops.NoOp()
        with tf.device(cluster.servers[1]):
            tf.constant(1.0)
        hook.begin()
        say(cluster, OWN, OWN._replace(has_native_ops=False))
        hook.after_create_session(session, coordinator)
        say(cluster, OWN._replace(has_native_ops=False), OWN)
        with pytest.raises(
            errors.InvalidInput, match=r"ps 0 at 127\.0\.0\.1:\d+ was started again"
        ):
            hook.after_create_session(session, coordinator)


def test_a_process_knows_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without native ops it says so; what it says survives JSON."""
    monkeypatch.setenv("ESTIMATOR_BRIDGE_NATIVE", "0")
    here = of_this_process()
    assert here[:2] == (tf.version.VERSION, estimator_bridge.__version__)
    assert not here.has_native_ops
    assert TaskReport.from_json(here.to_json()) == here


def test_host_ops_are_known_by_their_type() -> None:
    """Every op of the library is one, and TensorFlow's are none."""
    ops = loading.load().ops
    assert ops is not None
    types = [name for name in dir(ops) if name.startswith("Tf2Engine")]
    assert types
    assert all(map(loading.is_host_op, types))
    assert not loading.is_host_op("NoOp")


def test_threads_that_come_together_start_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them gets its address: a second server at the port would be an error for one."""
    started = []

    def start(*_: object, **__: object) -> types.SimpleNamespace:
        started.append(threading.current_thread())
        time.sleep(0.2)  # a server takes its time, in which the other threads come
        return types.SimpleNamespace(target="grpc://here")

    monkeypatch.setattr(tf.compat.v1.distribute, "Server", start)
    cluster = tasks.Cluster(free_addresses(chief=1), "chief", 0)
    targets: list[str] = []
    threads = [threading.Thread(target=lambda: targets.append(cluster.target())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert targets == ["grpc://here"] * 8
    assert len(started) == 1
