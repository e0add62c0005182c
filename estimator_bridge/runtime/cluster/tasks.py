"""Reads the tasks of a cluster from TF_CONFIG, starts this task's server, and ends the tasks.

When the chief's program ends, the parameter servers exit, and so do workers that only run the
chief's ops. Workers with their own training loop stop after the current step.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.tf_config import TaskType, read_task, tf_config
from tf2_engine import log
from tf2_engine.types import Object

_CHIEFS = (TaskType.CHIEF, TaskType.MASTER)
_END = "estimator_bridge/end"  # name of the queue that tells other tasks that the chief has ended
_LEFT = "estimator_bridge/left"  # name of the queue that tells the chief which workers have stopped
_ENDED, _TRAIN_YOURSELF = 0, 1  # the messages in the queue `_END`
_PATIENCE_MS = 5000  # timeout for telling a task about the end; a dead task never answers
_LONG_PATIENCE_MS = 60_000  # timeout for telling a worker that it has to train

_STARTING = threading.Lock()

# Parameter servers run this much longer than the chief, so that workers can finish their step.
LEAVING_SECS = 10.0


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster with parameter servers, and the role of this process in it."""

    tasks: Mapping[str, Sequence[str]]  # maps each job to the addresses of its tasks
    task_type: str
    task_id: int
    protocol: str | None = None

    @property
    def chief(self) -> str:
        return self._device(next(job for job in _CHIEFS if job in self.tasks), 0)

    @property
    def workers(self) -> tuple[str, ...]:
        """The devices of the tasks that run cores: the workers, or the chief if there are none."""
        return self.other_workers or (self.chief,)

    @property
    def other_workers(self) -> tuple[str, ...]:
        return self._devices(TaskType.WORKER)

    @property
    def servers(self) -> tuple[str, ...]:
        return self._devices(TaskType.PS)

    @property
    def own_device(self) -> str:
        return self._device(self.task_type, self.task_id)

    @property
    def is_chief(self) -> bool:
        return self.task_type in _CHIEFS

    def __hash__(self) -> int:  # a dict has no hash
        return hash((self.task_type, self.task_id))

    def __str__(self) -> str:
        counts = ", ".join(f"{len(tasks)} {job}" for job, tasks in self.tasks.items())
        return f"{counts}; this is {self.task_type} {self.task_id}"

    def target(self) -> str:
        with _STARTING:  # several threads connect to other tasks
            return str(_server(self).target)

    def serve(self) -> None:
        self.target()
        log.info("Serving in a cluster of %s.", self)
        ended = threading.Event()

        def wait() -> None:
            self.wait_for_end(self._warn_of_idleness)
            ended.set()

        thread = threading.Thread(target=wait, daemon=True, name="estimator_bridge end")
        thread.start()
        while not ended.wait(1.0):  # short waits let signals through
            if not thread.is_alive():
                raise errors.InvalidInput(
                    f"The server of {self.task_type} {self.task_id} has failed; the server's log "
                    "says why. Start the task again."
                )
        log.info("The chief has ended, so this task ends, too.")

    def wait_for_end(self, train_yourself: Callable[[], None] | None = None) -> None:
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
        for device in self.other_workers:
            arguments = (device, _END, _TRAIN_YOURSELF, _LONG_PATIENCE_MS)
            threading.Thread(target=self.put, args=arguments, daemon=True).start()

    def tell_all(self, *, workers_train: bool) -> None:
        workers = self.other_workers
        if not workers_train:
            self._tell([*workers, *self.servers])
            return
        staying = set(range(len(workers))) - self._workers_left(set(), 0.0)
        self._tell([workers[number] for number in staying])
        self._workers_left(staying, LEAVING_SECS)
        self._tell(self.servers)

    def _workers_left(self, expected: set[int], seconds: float) -> set[int]:
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
        threads = [threading.Thread(target=self.put, args=(each, _END, _ENDED)) for each in devices]
        for thread in threads:
            thread.daemon = True
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE_MS / 1000)

    def put(self, device: str, name: str, number: int, patience_ms: int = _PATIENCE_MS) -> None:
        try:
            with tf.Graph().as_default(), self.session(device) as session:
                options = tf.RunOptions(timeout_in_ms=patience_ms)
                session.run(_queue(device, name).enqueue(number), options=options)
        except tf.errors.OpError as error:
            what = "that workers train" if number == _TRAIN_YOURSELF else "that this task has ended"
            log.warning("%s could not be told %s: %s", device, what, error.message)

    def session(self, device: str) -> tf.Session:
        # Without the filter, a session waits for every task of the cluster.
        config = tf.ConfigProto(device_filters=[task_of(device), task_of(self.own_device)])
        return tf.Session(self.target(), config=config)

    def others(self) -> list[tuple[str, str, str]]:
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
    if not config.num_ps_replicas:
        return None
    # The cluster in the config may come from a resolver for a TPU that does not exist.
    spec = read_task(tf_config()).cluster_spec
    return Cluster(spec.as_dict(), config.task_type, config.task_id, config.protocol)


def task_of(device: str) -> str:
    return device.rpartition("/device:")[0]


def _queue(device: str, name: str) -> Object:
    with tf.device(device):
        return tf.FIFOQueue(1000, tf.int32, shapes=[()], shared_name=name)


@functools.cache
def _server(cluster: Cluster) -> Object:
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
            f"{address}: {error.message} Give each task a free address on the machine that runs it."
        ) from error


@functools.cache
def tell_all_at_exit(cluster: Cluster, *, workers_train: bool) -> None:
    atexit.register(cluster.tell_all, workers_train=workers_train)


class ChiefHasEnded(Exception):
    """The chief's program has ended, so nothing would initialize or save variables."""


class WorkerEnd:
    """Sets the event `come` in a worker once the chief has ended; the worker then stops.

    If the worker's step does not end within `LEAVING_SECS` after that, the process exits: nobody
    would save the results of the step.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.come = threading.Event()
        self._training = threading.Lock()
        cluster.target()  # the chief has to be able to reach this task
        self._thread = threading.Thread(
            target=self._leave, daemon=True, name="estimator_bridge end of the worker"
        )
        self._thread.start()
        atexit.register(self._leave_at_exit)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Makes the chief wait for this worker. Raises ChiefHasEnded if the chief has ended."""
        if not self._training.acquire(blocking=False):
            raise ChiefHasEnded
        try:
            yield
        finally:
            self._training.release()

    def _leave(self) -> None:
        self._cluster.wait_for_end()
        self.come.set()
        if not self._training.acquire(timeout=LEAVING_SECS):
            log.warning(
                "The chief has ended. %s %d exits, because its step did not end within %g seconds.",
                *(self._cluster.task_type, self._cluster.task_id, LEAVING_SECS),
            )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # A session that waits for other tasks cannot be interrupted.
        self._cluster.put(self._cluster.chief, _LEFT, self._cluster.task_id)

    def _leave_at_exit(self) -> None:
        if not self.come.is_set():
            self._cluster.put(self._cluster.own_device, _END, _ENDED)
        self._thread.join(LEAVING_SECS)


@functools.cache
def end_of(cluster: Cluster) -> WorkerEnd:
    return WorkerEnd(cluster)
