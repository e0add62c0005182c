"""The chief asks each task what it runs: versions must be equal, and native ops may be missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support.local_cluster import free_ports, start_tasks
from estimator_bridge import errors
from estimator_bridge.runtime import task_software, tasks
from estimator_bridge.runtime.task_software import Software

OWN = Software(tf.version.VERSION, "5eed", True)


@pytest.fixture(scope="module")
def cluster() -> tasks.Cluster:
    """A chief and two parameter servers in this process."""
    jobs = {"chief": 1, "ps": 2}
    ports = iter(free_ports(3))
    spec = {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in jobs.items()}
    start_tasks(spec, "ps")
    return tasks.Cluster(spec, "chief", 0)


def say(cluster: tasks.Cluster, *of_servers: Any) -> None:
    """Replaces what the parameter servers have said."""
    for device, software in zip(cluster.servers, of_servers, strict=True):
        with tf.Graph().as_default(), tf.device(device):
            clear = tf.raw_ops.StageClear(dtypes=[tf.string], shared_name=task_software._NAME)
            text = tf.constant(json.dumps(software))
            with tf.control_dependencies([clear]):
                stage = tf.raw_ops.Stage(values=[text], shared_name=task_software._NAME)
            with cluster.session(device) as session:
                session.run(stage)


def test_tasks_with_native_ops_are_known(
    cluster: tasks.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have them, and the chief; each chief hears it; none where the chief has none."""
    monkeypatch.setattr(task_software, "of_this_process", lambda: OWN)
    say(cluster, OWN, OWN._replace(has_native_ops=False))
    for _ in range(2):
        assert task_software.native_devices(cluster) == {cluster.chief, cluster.servers[0]}
    monkeypatch.setattr(
        task_software, "of_this_process", lambda: OWN._replace(has_native_ops=False)
    )
    assert task_software.native_devices(cluster) == frozenset()


@pytest.mark.parametrize(
    "other, shown",
    [
        (OWN._replace(tensorflow="2.13.0"), "has TensorFlow 2.13.0 and native sources 5eed"),
        (OWN._replace(native_sources="f00d", has_native_ops=False), "native sources f00d"),
    ],
)
def test_a_task_of_another_version_is_refused(
    other: Software, shown: str, cluster: tasks.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its name, its address, and the versions."""
    monkeypatch.setattr(task_software, "of_this_process", lambda: OWN)
    say(cluster, OWN, other)
    with pytest.raises(errors.InvalidInput, match=rf"ps 1 at 127\.0\.0\.1:\d+ .*{shown}"):
        task_software.native_devices(cluster)


def test_a_process_knows_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without native ops it says so; what it says survives JSON."""
    monkeypatch.setenv("ESTIMATOR_BRIDGE_NATIVE", "0")
    here = task_software.of_this_process()
    assert (here.tensorflow, here.has_native_ops) == (tf.version.VERSION, False)
    assert Software(*json.loads(json.dumps(here))) == here
