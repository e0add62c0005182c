"""The tasks of a cluster that TF_CONFIG describes: their devices, their servers, and their end.

Each task is a server of TensorFlow. The chief, when its program ends, lets the others end: those
that only serve wait for that, and workers that train by themselves stop after their step.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.cluster import TaskType, read_task, tf_config
from tf2_engine import log
from tf2_engine.types import Object

_CHIEFS = (TaskType.CHIEF, TaskType.MASTER)
_END = "estimator_bridge/end"  # the name of the queue by which every other task hears of the chief
_LEFT = "estimator_bridge/left"  # that of the chief, for the numbers of workers that train no more
_ENDED, _TRAIN_YOURSELF = 0, 1  # what the first of the queues holds
_PATIENCE_MS = 5000  # for a task to hear of the end: one that is gone hears nothing
_LONG_PATIENCE_MS = 60_000  # for one to hear that it has to train, for which nobody waits

_STARTING = threading.Lock()

LEAVING_SECS = 10.0
"""How long parameter servers serve after the chief has ended, for workers to end their steps."""


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
        return self.other_workers or (self.chief,)

    @property
    def other_workers(self) -> tuple[str, ...]:
        """The devices of the workers, of which there may be none."""
        return self._devices(TaskType.WORKER)

    @property
    def servers(self) -> tuple[str, ...]:
        """The devices of the parameter servers."""
        return self._devices(TaskType.PS)

    @property
    def own_device(self) -> str:
        """The device of this process."""
        return self._device(self.task_type, self.task_id)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return self.task_type in _CHIEFS

    def __hash__(self) -> int:  # a dict has none
        return hash((self.task_type, self.task_id))

    def __str__(self) -> str:
        counts = ", ".join(f"{len(tasks)} {job}" for job, tasks in self.tasks.items())
        return f"{counts}; this is {self.task_type} {self.task_id}"

    def target(self) -> str:
        """Returns the address of this task for sessions; starts its server, if none runs."""
        with _STARTING:  # by one of the threads that speak to other tasks
            return str(_server(self).target)

    def tell_all_at_exit(self, *, workers_train: bool) -> None:
        """Lets every other task end when this process does, also after an error.

        Args:
            workers_train: whether workers have steps of their own, which parameter servers serve
                to their end.
        """
        _tell_all_at_exit(self, workers_train)

    def serve(self) -> None:
        """Serves until the chief ends."""
        self.target()
        log.info("Serving in a cluster of %s.", self)
        ended = threading.Event()

        def wait() -> None:
            self.wait_for_end(self._warn_of_idleness)
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

    def wait_for_end(self, train_yourself: Callable[[], None] | None = None) -> None:
        """Blocks until this task has been told of the end.

        Args:
            train_yourself: called when the chief says that workers train by themselves.
        """
        with tf.Graph().as_default(), self.session(self.own_device) as session:
            message = _queue(self.own_device, _END).dequeue()
            while session.run(message) == _TRAIN_YOURSELF:
                if train_yourself is not None:
                    train_yourself()

    def _warn_of_idleness(self) -> None:
        log.warning(
            "The chief trains asynchronously, without use_tpu=True: %s %d only serves, and so "
            "takes no part in the training. Run the program itself in this task, as in the chief: "
            "`estimator-bridge run PROGRAM` in place of `estimator-bridge serve`.",
            *(self.task_type, self.task_id),
        )

    def say_workers_train(self) -> None:
        """Lets workers that only serve warn of it, as soon as they can be reached."""
        for device in self.other_workers:
            arguments = (device, _END, _TRAIN_YOURSELF, _LONG_PATIENCE_MS)
            threading.Thread(target=self._put, args=arguments, daemon=True).start()

    def tell_own(self) -> None:
        """Tells this task of the end."""
        self._put(self.own_device, _END, _ENDED)

    def say_left(self) -> None:
        """Tells the chief that this worker trains no more."""
        self._put(self.chief, _LEFT, self.task_id)

    def tell_all(self, *, workers_train: bool) -> None:
        """Lets every other task end. One that cannot be reached is left as it is."""
        workers = self.other_workers
        if not workers_train:
            self._tell([*workers, *self.servers])
            return
        staying = set(range(len(workers))) - self._workers_left(set(), 0.0)
        self._tell([workers[number] for number in staying])
        self._workers_left(staying, LEAVING_SECS)
        self._tell(self.servers)

    def _workers_left(self, expected: set[int], seconds: float) -> set[int]:
        """Returns the workers that have left, once the expected ones have, or after a time."""
        left: set[int] = set()
        end = time.monotonic() + seconds
        with tf.Graph().as_default(), self.session(self.own_device) as session:
            queue = _queue(self.own_device, _LEFT)
            size, number = queue.size(), queue.dequeue()
            while True:
                if session.run(size):
                    left.add(int(session.run(number)))
                elif expected <= left or time.monotonic() > end:
                    return left
                else:
                    time.sleep(0.05)

    def _tell(self, devices: Sequence[str]) -> None:
        threads = [
            threading.Thread(target=self._put, args=(each, _END, _ENDED)) for each in devices
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE_MS / 1000)

    def _put(self, device: str, name: str, number: int, patience_ms: int = _PATIENCE_MS) -> None:
        try:
            with tf.Graph().as_default(), self.session(device) as session:
                options = tf.RunOptions(timeout_in_ms=patience_ms)
                session.run(_queue(device, name).enqueue(number), options=options)
        except tf.errors.OpError as error:
            what = "that workers train" if number == _TRAIN_YOURSELF else "of the end"
            log.warning("%s did not hear %s: %s", device, what, error.message)

    def session(self, device: str) -> tf.Session:
        """Returns a session that sees this task and that of a device alone."""
        # Without the filter a session waits for every task of the cluster.
        config = tf.ConfigProto(device_filters=[task_of(device), task_of(self.own_device)])
        return tf.Session(self.target(), config=config)

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


def cluster_of(config: RunConfig) -> Cluster | None:
    """Returns the cluster of a config; None without parameter servers, or for an evaluator."""
    if not config.num_ps_replicas:
        return None
    # That of the config may be the one of a resolver, of a TPU that is not there.
    spec = read_task(tf_config()).cluster_spec
    return Cluster(spec.as_dict(), config.task_type, config.task_id, config.protocol)


def task_of(device: str) -> str:
    """Returns the name of the task that has a device."""
    return device.rpartition("/device:")[0]


def _queue(device: str, name: str) -> Object:
    with tf.device(device):
        return tf.FIFOQueue(1000, tf.int32, shapes=[()], shared_name=name)


@functools.cache
def _server(cluster: Cluster) -> Object:
    """Starts the server of a task; it runs until the process ends."""
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
def _tell_all_at_exit(cluster: Cluster, workers_train: bool) -> None:
    atexit.register(cluster.tell_all, workers_train=workers_train)
