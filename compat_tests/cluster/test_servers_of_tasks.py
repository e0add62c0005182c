"""A task has only one server, whichever of its threads needs the server first."""

from __future__ import annotations

import threading
import time
import types

import pytest
import tensorflow as tf

from compat_tests.support.local_cluster import free_ports
from estimator_bridge.runtime.cluster import tasks


def test_threads_that_come_together_start_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them gets its address: a second server at the port would be an error for one."""
    started = []

    def start(*_: object, **__: object) -> types.SimpleNamespace:
        started.append(threading.current_thread())
        time.sleep(0.2)  # a server takes its time, in which the other threads come
        return types.SimpleNamespace(target="grpc://here")

    monkeypatch.setattr(tf.compat.v1.distribute, "Server", start)
    cluster = tasks.Cluster({"chief": [f"127.0.0.1:{free_ports(1)[0]}"]}, "chief", 0)
    targets: list[str] = []
    threads = [threading.Thread(target=lambda: targets.append(cluster.target())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert targets == ["grpc://here"] * 8
    assert len(started) == 1
