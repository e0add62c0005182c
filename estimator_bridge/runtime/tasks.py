"""The tasks of a cluster that TF_CONFIG describes: their devices, their servers, and their end.

One client, the chief, builds the graph of all tasks and runs it. The others only serve: each is a
server of TensorFlow, and waits for the chief to say that its program has ended.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import threading
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.cluster import TaskType, read_task, tf_config
from tf2_engine import log
from tf2_engine.types import Object, Op

_CHIEFS = (TaskType.CHIEF, TaskType.MASTER)
_END = "estimator_bridge/end"  # the name of the queue that every task but the chief has
_PATIENCE_MS = 5000  # for a task to hear of the end: one that is gone hears nothing


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster with parameter servers, and the place of this process in it."""

    tasks: Mapping[str, Sequence[str]]  # addresses by job
    task_type: str
    task_id: int
    protocol: str | None = None

    @property
    def chief(self) -> str:
        """The device of the chief."""
        return self._device(next(job for job in _CHIEFS if job in self.tasks), 0)

    @property
    def workers(self) -> tuple[str, ...]:
        """The devices of the tasks that run cores: the workers, or without any the chief."""
        return self._devices(TaskType.WORKER) or (self.chief,)

    @property
    def servers(self) -> tuple[str, ...]:
        """The devices of the parameter servers."""
        return self._devices(TaskType.PS)

    @property
    def only_serves(self) -> bool:
        """Whether this process is a worker or a parameter server."""
        return self.task_type not in _CHIEFS

    def __str__(self) -> str:
        counts = ", ".join(f"{len(tasks)} {job}" for job, tasks in self.tasks.items())
        return f"{counts}; this is {self.task_type} {self.task_id}"

    def target(self) -> str:
        """Returns the address of this task for sessions; starts its server, if none runs."""
        return str(self._start().target)

    def tell_all_at_exit(self) -> None:
        """Lets every other task end when this process does, also after an error."""
        _tell_all_at_exit(self._key())

    def serve(self) -> None:
        """Serves until the chief ends."""
        target = self._start().target
        log.info("Serving in a cluster of %s.", self)
        ended = threading.Event()

        def wait() -> None:
            with tf.Graph().as_default(), self._session(target, self._own()) as session:
                session.run(_end_queue(self._own()).dequeue())
            ended.set()

        thread = threading.Thread(target=wait, daemon=True, name="estimator_bridge end")
        thread.start()
        while not ended.wait(1.0):  # in turns, so that signals are handled
            if not thread.is_alive():
                raise errors.InvalidInput(
                    f"The server of {self.task_type} {self.task_id} has failed; its own log says "
                    "why. Start the task again."
                )
        log.info("The chief has ended, and so does this task.")

    def tell_all(self) -> None:
        """Lets every other task end. One that cannot be reached is left as it is."""
        target = self._start().target
        devices = [*self._devices(TaskType.WORKER), *self.servers]
        threads = [threading.Thread(target=self._tell, args=(target, each)) for each in devices]
        for thread in threads:
            thread.daemon = True
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE_MS / 1000)

    def _tell(self, target: str, device: str) -> None:
        try:
            with tf.Graph().as_default(), self._session(target, device) as session:
                options = tf.RunOptions(timeout_in_ms=_PATIENCE_MS)
                session.run(_end_queue(device).enqueue(0), options=options)
        except tf.errors.OpError as error:
            log.warning("%s did not hear of the end: %s", device, error.message)

    def _session(self, target: str, device: str) -> tf.Session:
        # Without the filter a session waits for every task of the cluster.
        config = tf.ConfigProto(device_filters=[_task_of(device), _task_of(self._own())])
        return tf.Session(target, config=config)

    def _own(self) -> str:
        return self._device(self.task_type, self.task_id)

    def others(self) -> list[tuple[str, str, str]]:
        """Returns the name, the address and the device of each worker and parameter server."""
        return [
            (f"{job} {index}", address, self._device(job, index))
            for job in (TaskType.WORKER, TaskType.PS)
            for index, address in enumerate(self.tasks.get(job, ()))
        ]

    def _devices(self, job: str) -> tuple[str, ...]:
        return tuple(self._device(job, index) for index in range(len(self.tasks.get(job, ()))))

    def _device(self, job: str, index: int) -> str:
        return f"/job:{job}/task:{index}/device:CPU:0"

    def _start(self) -> Object:
        return _server(self._key())

    def _key(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def cluster_of(config: RunConfig) -> Cluster | None:
    """Returns the cluster of a config; None without parameter servers, or for an evaluator."""
    if not config.num_ps_replicas:
        return None
    # That of the config may be the one of a resolver, of a TPU that is not there.
    spec = read_task(tf_config()).cluster_spec
    return Cluster(spec.as_dict(), config.task_type, config.task_id, config.protocol)


def _task_of(device: str) -> str:
    return device.rpartition("/device:")[0]


def _end_queue(device: str) -> Object:
    with tf.device(device):
        return tf.FIFOQueue(2, tf.int32, shapes=[()], shared_name=_END)


@functools.cache
def _server(key: str) -> Object:
    """Starts the server of a task; it runs until the process ends."""
    cluster = Cluster(**json.loads(key))
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(cluster.tasks),
            job_name=cluster.task_type,
            task_index=cluster.task_id,
            protocol=cluster.protocol,
        )
    except tf.errors.OpError as error:
        address = cluster.tasks[cluster.task_type][cluster.task_id]
        raise errors.InvalidInput(
            f"TF_CONFIG: no server can be started for {cluster.task_type} {cluster.task_id} at "
            f"{address}: {error.message} Give each task an address of its machine that is free."
        ) from error


@functools.cache
def _tell_all_at_exit(key: str) -> Op:
    atexit.register(Cluster(**json.loads(key)).tell_all)
