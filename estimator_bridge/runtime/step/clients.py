"""The clients of a cluster: one for the graph of all tasks, or each task that trains by itself."""

from __future__ import annotations

import dataclasses
import functools

import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.cluster import TaskType
from estimator_bridge.runtime import task_software
from estimator_bridge.runtime.program_types import Hook
from estimator_bridge.runtime.step.placing import DeviceFunction, following
from estimator_bridge.runtime.tasks import Cluster, task_of
from estimator_bridge.runtime.worker_end import WorkerEnd, end_of


@dataclasses.dataclass(frozen=True)
class Client:
    """The use that the sessions of a job make of a cluster; those of one process make none."""

    cluster: Cluster | None = None

    @property
    def device(self) -> str:
        """The device of ops that belong to this process alone."""
        return "/device:CPU:0"

    @property
    def writes_summaries(self) -> bool:
        """Whether the summaries of a training are this task's to write."""
        return True

    @property
    def end(self) -> WorkerEnd | None:
        """The end of a worker that trains; None for the chief."""
        return None

    @property
    def watched(self) -> Cluster | None:
        """The cluster of whose tasks a silent one stops this client; None if none does."""
        return None

    @property
    def hooks(self) -> list[Hook]:
        """The hooks of a training's sessions."""
        return []

    def configure(self, config: tf.ConfigProto) -> None:
        """Completes the default config of sessions."""

    def device_fn(self, configured: DeviceFunction | None) -> DeviceFunction | None:
        """Returns the device function of graphs, given that of the RunConfig."""
        return configured


@dataclasses.dataclass(frozen=True)
class InGraph(Client):
    """The chief as the only client: its graph has the ops of all tasks."""

    cluster: Cluster

    @property
    def watched(self) -> Cluster:
        """The cluster, each task of which every step waits for."""
        return self.cluster

    @property
    def hooks(self) -> list[Hook]:
        """Returns the hook that ends a training whose task came back without native ops."""
        return [task_software.SameSoftwareHook(self.cluster)]

    def configure(self, config: tf.ConfigProto) -> None:
        """Keeps sessions apart: an evaluation beside a training has variables of its names."""
        config.isolate_session_state = True

    def device_fn(self, configured: DeviceFunction | None) -> DeviceFunction:
        """Puts ops without a device beside their inputs."""
        return following(configured)


@dataclasses.dataclass(frozen=True)
class BetweenGraph(Client):
    """The chief or a worker as the client of a graph of its own, as stock trains without a TPU.

    Tasks share what is on the parameter servers: variables, by their names. They train
    asynchronously; each step of each task is one of the global step.
    """

    cluster: Cluster

    @property
    def device(self) -> str:
        """The device of this task; without a job a variable would be on a parameter server."""
        return self.cluster.own_device

    @property
    def writes_summaries(self) -> bool:
        """Whether this is the chief; beside a master, which evaluates, it is the first worker."""
        cluster = self.cluster
        if TaskType.MASTER in cluster.tasks and TaskType.WORKER in cluster.tasks:
            return (cluster.task_type, cluster.task_id) == (TaskType.WORKER, 0)
        return cluster.is_chief

    @property
    def end(self) -> WorkerEnd | None:
        """The end of a worker."""
        return None if self.cluster.is_chief else end_of(self.cluster)

    def configure(self, config: tf.ConfigProto) -> None:
        """Lets sessions see parameter servers and this task, so that no other is waited for."""
        config.device_filters.extend([f"/job:{TaskType.PS}", task_of(self.cluster.own_device)])

    def device_fn(self, configured: DeviceFunction | None) -> DeviceFunction:
        """Returns the RunConfig's, or puts variables on the parameter servers, one by one."""
        if configured is not None:
            return configured
        setter: DeviceFunction = tf.train.replica_device_setter(
            ps_tasks=len(self.cluster.servers), worker_device=task_of(self.cluster.own_device)
        )
        return setter


@functools.cache
def announce(cluster: Cluster) -> None:
    """Says once that workers have to train by themselves, or that this one does."""
    if cluster.is_chief:
        cluster.say_workers_train()
    else:
        task_software.say_that_it_trains(cluster)
