"""Runs a cluster of TensorFlow servers in this process, one per task."""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from compat_tests.conftest import Runner


class LocalCluster(NamedTuple):
    """The chief's target for sessions, and the devices of workers and parameter servers."""

    target: str
    workers: tuple[str, ...]
    servers: tuple[str, ...]


@functools.cache
def start(num_workers: int, num_servers: int) -> LocalCluster:
    """Starts a cluster, whose servers run until the process ends."""
    spec = free_addresses(chief=1, worker=num_workers, ps=num_servers)
    servers = start_tasks(spec, *spec)
    workers, parameter_servers = (
        tuple(f"/job:{job}/task:{i}/device:CPU:0" for i in range(count))
        for job, count in (("worker", num_workers), ("ps", num_servers))
    )
    return LocalCluster(servers[0].target, workers, parameter_servers)


def start_tasks(spec: Mapping[str, Sequence[str]], *jobs: str) -> list[Any]:
    """Starts servers for the tasks of some jobs. They run until the process ends.

    The servers share the threads of this process. With fewer threads than ops that may wait for
    each other, they would wait forever.
    """
    threads = 4 * sum(map(len, spec.values()))
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    servers = [
        tf.distribute.Server(spec, job_name=job, task_index=index, config=config)
        for job in jobs
        for index in range(len(spec.get(job, ())))
    ]
    _RUNNING.extend(servers)
    return servers


def free_addresses(**counts: int) -> dict[str, list[str]]:
    """Returns addresses on this machine for the tasks of each job that has any."""
    held = [socket.socket() for _ in range(sum(counts.values()))]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = iter([each.getsockname()[1] for each in held])
    for each in held:
        each.close()
    return {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in counts.items() if n}


class ClusterRunner(Runner):
    """Runs functions in one graph, in a session on a cluster."""

    def __init__(self, target: str) -> None:
        super().__init__("graph")
        # An op with a device runs there or fails; TensorFlow must not move it to the client.
        config = tf.compat.v1.ConfigProto(allow_soft_placement=False)
        self._session = tf.compat.v1.Session(target, graph=self._graph, config=config)


_RUNNING: list[object] = []  # A server that is garbage collected would end.
