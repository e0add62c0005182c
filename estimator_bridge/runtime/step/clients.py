"""Opens sessions in a cluster, with one graph for all tasks or one per task, and places ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.tf_config import TaskType
from estimator_bridge.runtime.cluster import task_software
from estimator_bridge.runtime.cluster.tasks import Cluster, WorkerEnd, end_of, task_of
from estimator_bridge.runtime.program_types import Hook
from tf2_engine import tf_compat
from tf2_engine.types import Object

DeviceFunction = Callable[[Object], str]
"""Chooses the device of an op while the op is created."""


def core_devices(cluster: Cluster, workers: Sequence[str]) -> tuple[DeviceFunction, ...]:
    """For each core, makes a device function that places the core's ops on one of `workers`.

    Each variable goes to the parameter server with the fewest bytes so far. Ops that call Python
    functions are placed in the chief, because only the chief has these functions.
    """
    strategy = _Balanced(len(cluster.servers))

    def of_core(worker: str) -> DeviceFunction:
        place: DeviceFunction = tf.train.replica_device_setter(
            ps_tasks=len(cluster.servers), worker_device=worker, ps_strategy=strategy
        )
        return lambda op: cluster.chief if tf_compat.is_in_python(op.type) else place(op)

    return tuple(map(of_core, workers))


def following(device_fn: DeviceFunction | None) -> DeviceFunction:
    """Places ops without a device on the device of their inputs.

    Otherwise every activation and gradient would be sent to the client.
    """

    def device_of(op: Object) -> str:
        device = op.device or (device_fn(op) if device_fn else "")
        if device or tf_compat.is_in_python(op.type):
            return str(device)
        for tensor in op.inputs:
            is_reference = tensor.dtype != tensor.dtype.base_dtype
            if is_reference or tensor.dtype in (tf.resource, tf.variant):
                return str(tensor.op.device)
        return next((str(tensor.op.device) for tensor in op.inputs if tensor.op.device), "")

    return device_of


class _Balanced:
    def __init__(self, num_servers: int) -> None:
        self._bytes = [0] * num_servers

    def __call__(self, op: Object) -> int:
        elements = tf.TensorShape(op.get_attr("shape")).num_elements() or 1
        emptiest = self._bytes.index(min(self._bytes))
        self._bytes[emptiest] += elements * tf.as_dtype(op.get_attr("dtype")).size
        return emptiest


class Client:
    """Opens sessions. This base class is for one process without a cluster."""

    device = "/device:CPU:0"
    writes_summaries = True
    watched: Cluster | None = None
    hooks: Sequence[Hook] = ()

    def __init__(self, cluster: Cluster | None = None) -> None:
        self.cluster = cluster

    @property
    def end(self) -> WorkerEnd | None:
        return None

    def configure(self, config: tf.ConfigProto) -> None: ...

    def device_fn(self, configured: DeviceFunction | None) -> DeviceFunction | None:
        return configured


class InGraph(Client):
    """The chief is the only client, and its graph contains the ops of all tasks."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.watched, self.hooks = cluster, [task_software.SameSoftwareHook(cluster)]

    def configure(self, config: tf.ConfigProto) -> None:
        # An evaluation during training has variables of the same names.
        config.isolate_session_state = True

    def device_fn(self, configured: DeviceFunction | None) -> DeviceFunction:
        return following(configured)


class BetweenGraph(Client):
    """The chief or a worker with a graph of its own. Tasks share variables by name."""

    cluster: Cluster

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        # The device includes the job, because variables without a job go to parameter servers.
        self.device = cluster.own_device
        self.writes_summaries = cluster.is_chief
        if TaskType.MASTER in cluster.tasks and TaskType.WORKER in cluster.tasks:
            # The master evaluates.
            place = cluster.task_type, cluster.task_id
            self.writes_summaries = place == (TaskType.WORKER, 0)

    @property
    def end(self) -> WorkerEnd | None:
        return None if self.cluster.is_chief else end_of(self.cluster)

    def configure(self, config: tf.ConfigProto) -> None:
        # The session connects to the parameter servers only, so that no other task delays it.
        config.device_filters.extend([f"/job:{TaskType.PS}", task_of(self.device)])

    def device_fn(self, configured: DeviceFunction | None) -> DeviceFunction:
        if configured is not None:
            return configured
        setter: DeviceFunction = tf.train.replica_device_setter(
            ps_tasks=len(self.cluster.servers), worker_device=task_of(self.device)
        )
        return setter


@functools.cache
def announce(cluster: Cluster) -> None:
    if cluster.is_chief:
        cluster.say_workers_train()
    else:
        task_software.say_that_it_trains(cluster)
