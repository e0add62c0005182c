"""Reads this process's place in the cluster from the environment variable TF_CONFIG.

TF_CONFIG is checked before a server starts, because TensorFlow's servers accept any text as an
address, and would wait forever for a task that does not exist.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import TypeAlias

import tensorflow as tf

from estimator_bridge import errors
from tf2_engine.types import Object

TFConfig: TypeAlias = Mapping[str, Object]
"""The value of TF_CONFIG, parsed."""

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(%\w+)?\]|[^\s:/\[\]]+):(?P<port>[0-9]+)")
_LAST_PORT = 65535
_EXAMPLE = '{"chief": ["a:2222"], "worker": ["b:2222"], "ps": ["c:2222", "d:2222"]}'


_TEXTS = ("model_dir", "session_master", "eval_session_master")


class TaskType:
    """The kinds of tasks in a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


@dataclasses.dataclass(frozen=True)
class Task:
    """The place of this process in the cluster. An evaluator has no `global_id_in_cluster`."""

    cluster_spec: tf.train.ClusterSpec = dataclasses.field(
        default_factory=lambda: tf.train.ClusterSpec({})
    )
    task_type: str = TaskType.WORKER
    task_id: int = 0
    master: str = ""
    evaluation_master: str = ""
    is_chief: bool = True
    num_ps_replicas: int = 0
    num_worker_replicas: int = 1
    global_id_in_cluster: int | None = 0
    service: TFConfig | None = None


def tf_config() -> TFConfig:
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise errors.InvalidSpec(
            f"TF_CONFIG in the environment is not JSON: {error}, got {text!r}."
        ) from error
    if not isinstance(config, dict):
        raise errors.InvalidSpec(f"TF_CONFIG in the environment must be an object, got {text!r}.")
    return config


def read_task(config: TFConfig) -> Task:
    service = config.get("service")
    if service is not None and not isinstance(service, dict):
        raise errors.WrongType(
            f'If "service" is set in TF_CONFIG, it must be a dict. Given {service!r}.'
        )
    cluster = config.get("cluster") or {}
    place = config.get("task") or {}
    _check_form(config, cluster, place)
    task = _in_cluster(config, cluster, place) if cluster else _alone(config, place)
    return dataclasses.replace(task, service=service)


def _alone(config: TFConfig, place: TFConfig) -> Task:
    task_type, task_id = place.get("type", TaskType.WORKER), _index_of(place) or 0
    wrong = _first(
        (task_type != TaskType.WORKER, "task type must be WORKER"),
        (task_id != 0, "task index must be 0"),
    )
    if wrong:
        raise errors.InvalidSpec(
            f'If "cluster" is not set in TF_CONFIG, {wrong}; got {task_type} {task_id}.'
        )
    return Task(
        master=config.get("session_master", ""),
        evaluation_master=config.get("eval_session_master", ""),
    )


def _in_cluster(config: TFConfig, cluster: TFConfig, place: TFConfig) -> Task:
    chief = TaskType.MASTER if TaskType.MASTER in cluster else TaskType.CHIEF
    tasks = {job: len(addresses) for job, addresses in cluster.items()}
    task_type, task_id = _checked_place(tasks, chief, place)
    others = {job for job, count in tasks.items() if count} - {chief, TaskType.EVALUATOR}
    if (TaskType.PS not in others and others) or not others <= {TaskType.PS, TaskType.WORKER}:
        raise errors.InvalidSpec(
            f"TF_CONFIG: the cluster has {tasks}, but it must have one chief and nothing else, or "
            'one chief, parameter servers ("ps") and any number of workers ("worker"). Add the '
            "parameter servers, or run without TF_CONFIG."
        )
    is_cluster = bool(others)
    if is_cluster:
        _check_addresses(cluster)
    if task_type == TaskType.EVALUATOR:
        return Task(
            task_type=TaskType.EVALUATOR,
            task_id=task_id,
            evaluation_master=config.get("eval_session_master", ""),
            is_chief=False,
            num_worker_replicas=0,
            global_id_in_cluster=None,
        )
    # Stock's order: the chief, then workers, and parameter servers last.
    order = [chief, *sorted({*cluster} - {chief, TaskType.PS}), TaskType.PS]
    before = sum(tasks.get(job, 0) for job in order[: order.index(task_type)])
    address = f"grpc://{cluster[task_type][task_id]}" if is_cluster else ""
    return Task(
        cluster_spec=tf.train.ClusterSpec(cluster),
        task_type=task_type,
        task_id=task_id,
        master=config.get("session_master", address),
        evaluation_master=config.get("eval_session_master", "") if is_cluster else "",
        is_chief=task_type == chief,
        num_ps_replicas=tasks.get(TaskType.PS, 0),
        num_worker_replicas=1 + tasks.get(TaskType.WORKER, 0),
        global_id_in_cluster=before + task_id,
    )


def _checked_place(tasks: Mapping[str, int], chief: str, place: TFConfig) -> tuple[str, int]:
    set_in = 'If "cluster" is set in TF_CONFIG,'
    has_master = chief == TaskType.MASTER
    task_type, index = place.get("type") or "", _index_of(place)
    number = -1 if index is None else index
    known = {**tasks, TaskType.EVALUATOR: tasks.get(TaskType.EVALUATOR, number + 1)}
    wrong = _first(
        (
            has_master and TaskType.CHIEF in tasks,
            "If `master` node exists in `cluster`, job `chief` is not supported",
        ),
        (not tasks.get(chief), f'{set_in} it must have one "{chief}" node'),
        (tasks.get(chief, 0) > 1, f'The "cluster" in TF_CONFIG must have only one "{chief}" node'),
        (not task_type, f"{set_in} task type must be set"),
        (index is None, f"{set_in} task index must be set"),
        (number < 0, "Task index must be non-negative number"),
        (task_type not in known, f"{task_type} is not a valid task_type"),
        (number >= known.get(task_type, 0), f"{number} is not a valid task_id for {task_type}"),
        (
            has_master and task_type == TaskType.EVALUATOR,
            "If `master` node exists in `cluster`, task_type `evaluator` is not supported",
        ),
    )
    if wrong:
        raise errors.InvalidSpec(
            f"TF_CONFIG: {wrong}. The cluster has {tasks}, and this task is {place}."
        )
    return str(task_type), number


def _first(*rules: tuple[object, str]) -> str | None:
    return next((text for broken, text in rules if broken), None)


def _check_form(config: Mapping[str, Object], cluster: Object, place: Object) -> None:
    for name in _TEXTS:
        if not isinstance(config.get(name, ""), str):
            raise errors.InvalidSpec(
                f'TF_CONFIG: "{name}" must be a string, got {config[name]!r}. Write the value in '
                "quotes, or leave it out."
            )
    if not isinstance(cluster, dict) or not all(
        isinstance(addresses, list) and all(isinstance(each, str) for each in addresses)
        for addresses in cluster.values()
    ):
        raise errors.InvalidSpec(
            f'TF_CONFIG: "cluster" must have a list of addresses for each job, as in {_EXAMPLE}; '
            f"got {cluster!r}."
        )
    if not isinstance(place, dict) or not isinstance(place.get("type") or "", str):
        raise errors.InvalidSpec(
            f'TF_CONFIG: "task" must be the place of this process in the cluster, as in '
            f'{{"type": "ps", "index": 0}}; got {place!r}.'
        )


def _check_addresses(cluster: Mapping[str, list[str]]) -> None:
    names = {
        (job, index): address
        for job, addresses in cluster.items()
        for index, address in enumerate(addresses)
    }
    for (job, index), address in names.items():
        match = _ADDRESS.fullmatch(address)
        if match is None or not 1 <= int(match["port"]) <= _LAST_PORT:
            raise errors.InvalidSpec(
                f"TF_CONFIG: {job} {index} is at {address!r}, but an address must be HOST:PORT, "
                f"with a port from 1 to {_LAST_PORT}, and an IPv6 host in brackets, as in "
                "[::1]:2222."
            )
    counts = collections.Counter(names.values())
    for address, count in counts.items():
        if count > 1:
            tasks = " and ".join(
                f"{job} {n}" for (job, n), each in names.items() if each == address
            )
            raise errors.InvalidSpec(
                f"TF_CONFIG: {tasks} are at the same address, {address!r}. Give each task a "
                "different address: another machine, or another port."
            )


def _index_of(place: Mapping[str, Object]) -> int | None:
    index = place.get("index")
    if index is None:
        return None
    is_number = isinstance(index, int) and not isinstance(index, bool)
    if is_number or (isinstance(index, str) and re.fullmatch(r"-?[0-9]+", index)):
        return int(index)
    raise errors.InvalidSpec(
        f'TF_CONFIG: the "index" of a task must be a whole number. The tasks of each job '
        f"are numbered from 0. The task is {dict(place)!r}."
    )
