"""Each of several hosts, emulated in one process, calls an input_fn for its part of the cores."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.support import tpu_jobs
from estimator_bridge import errors, estimator
from estimator_bridge.defaults import DEFAULTS, INPUT_HOSTS_VARIABLE
from estimator_bridge.runtime.estimator import cores_and_hosts
from estimator_bridge.runtime.input.feeding import THIS_PROCESS, CoreLayout, read_per_core
from estimator_bridge.runtime.step.clients import following
from estimator_bridge.runtime.step.model_step import new_graph

Modes = estimator.tpu.InputPipelineConfig
CORES, HOSTS, BATCH = 4, 2, 8
HOST = "/replica:0/task:0/device:CPU:0"
WORKERS = ("/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0")


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv(INPUT_HOSTS_VARIABLE, raising=False)
    yield lambda count: setattr(DEFAULTS, "input_hosts", count)
    DEFAULTS.input_hosts = None


def params_of_calls(
    folder: pathlib.Path, mode: str, input_mode: int, asks: bool = True
) -> list[Any]:
    """Returns the params of each call of an input_fn, and what its context says."""
    seen: list[Any] = []

    def input_fn(params: Any) -> Any:
        context = params["context"]
        of_host = (context.current_host, context.current_input_fn_deployment()) if asks else ()
        seen.append((params["batch_size"], context, *of_host))
        data = tf.data.Dataset.from_tensors(tf.ones([params["batch_size"], 1]))
        return data.repeat().map(lambda x: (x, x))

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        context = params["context"]
        assert (context.num_replicas, params["batch_size"]) == (CORES, features.shape[0])
        return tpu_jobs.spec(
            mode, tf.reduce_mean(features * tf.get_variable("weight", []) - labels)
        )

    tpu = {"num_shards": CORES, "per_host_input_for_training": input_mode}
    job = tpu_jobs.make(model_fn, folder, BATCH, tpu=tpu)
    with new_graph(None):
        job._job(mode, input_fn, None, None).build()
    return seen


@pytest.mark.parametrize(
    ("mode", "input_mode", "batch_size", "calls_of_hosts"),
    [
        ("train", Modes.PER_HOST_V1, 4, [0, 1]),
        ("train", Modes.PER_HOST_V2, 2, [0, 1]),
        ("train", Modes.PER_SHARD_V1, 2, [0, 0, 1, 1]),
        ("train", Modes.BROADCAST, 8, [0]),
        # Stock evaluates on several hosts in this mode alone.
        ("eval", Modes.PER_HOST_V2, 2, [0, 1]),
        ("eval", Modes.PER_HOST_V1, 8, [0]),
    ],
)
def test_an_input_fn_is_told_of_its_host(
    mode: str,
    input_mode: int,
    batch_size: int,
    calls_of_hosts: list[int],
    hosts: Any,
    tmp_path: pathlib.Path,
) -> None:
    """It is called once for a host, or for a core, with the part of the batch that is theirs."""
    hosts(HOSTS)
    calls = params_of_calls(tmp_path, mode, input_mode)
    assert [each[0] for each in calls] == [batch_size] * len(calls_of_hosts)
    assert [each[2] for each in calls] == calls_of_hosts
    count = len(calls_of_hosts)
    deployments = [(HOST, call, count, CORES // count) for call in range(count)]
    assert [each[3] for each in calls] == deployments
    num_hosts = len(set(calls_of_hosts))
    for _, context, *_ in calls:
        assert context.num_hosts == num_hosts
        assert context.num_of_replicas_per_host == CORES // num_hosts
        last = (CORES - 1) % (CORES // num_hosts)
        assert context.device_for_replica(CORES - 1) == ("/task:0/device:CPU:0", last)
        with pytest.raises(errors.InvalidInput, match=f"There is no host {num_hosts}"):
            context.tpu_host_placement_function(num_hosts)


def test_hosts_of_workers_have_their_devices() -> None:
    """A context says where the host of a call, of a number and of a core is."""
    cores = CoreLayout(CORES, Modes.PER_HOST_V1, hosts=WORKERS)
    context = cores_and_hosts.TPUContext(cores, input_fn_call=1)
    assert context.current_input_fn_deployment() == (WORKERS[1], 1, 2, 2)
    assert context.tpu_host_placement_function(host_id=1) == WORKERS[1]
    devices = [context.device_for_replica(core) for core in range(CORES)]
    assert devices == [(host, core) for host in WORKERS for core in (0, 1)]


@pytest.mark.parametrize("asks", [True, False])
def test_an_input_fn_that_does_not_ask_for_its_host_is_named(
    asks: bool, hosts: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All hosts read the same then; a warning says so, once, and what to do."""
    hosts(HOSTS)
    with caplog.at_level(logging.WARNING):
        params_of_calls(tmp_path, "train", Modes.PER_HOST_V1, asks)
    lines = [each.getMessage() for each in caplog.records if "same data" in each.getMessage()]
    assert len(lines) == (0 if asks else 1)
    for line in lines:
        assert "input_fn is called for each of 2 hosts" in line
        assert "--input_hosts 1" in line


@pytest.mark.parametrize("asked_for", [None, 2])
@pytest.mark.parametrize("asks", [True, False])
def test_workers_call_what_asks_for_its_host(
    asks: bool, asked_for: int | None, hosts: Any, tmp_path: pathlib.Path
) -> None:
    """The chief calls any other, unless a number of hosts is asked for."""

    def input_fn(params: Any) -> Any:
        calls.append(params["batch_size"])
        assert not asks or params["context"].current_host == 0
        return tf.data.Dataset.from_tensors(tf.ones([params["batch_size"], 1]))

    hosts(asked_for)
    calls: list[int] = []
    job = tpu_jobs.make(lambda features, labels, mode, params: None, tmp_path, BATCH)
    layout = CoreLayout(CORES, Modes.PER_HOST_V1, hosts=WORKERS)

    assert job._shards(input_fn, "train", layout) == (asks or asked_for is not None)
    assert calls == ([BATCH // HOSTS] if asked_for is None else [])
    assert job._shards(input_fn, "train", CoreLayout(CORES, Modes.PER_HOST_V1))


def test_numbers_of_hosts_that_do_not_fit_are_refused(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster has as many hosts as workers, or one; an option comes before the environment."""

    def of(workers: tuple[str, ...], cores: int = CORES) -> tuple[str, ...]:
        return cores_and_hosts.input_hosts(workers, "train", Modes.PER_HOST_V2, cores)

    assert of(WORKERS) == WORKERS
    assert of(WORKERS[:1]) == WORKERS[:1]
    assert of(()) == (THIS_PROCESS,)
    monkeypatch.setenv(INPUT_HOSTS_VARIABLE, "1")
    assert of(WORKERS) == (THIS_PROCESS,)
    hosts(2)
    assert of(WORKERS) == WORKERS
    assert of(()) == (THIS_PROCESS,) * 2
    hosts(4)
    with pytest.raises(errors.InvalidInput, match=r"4 host\(s\), but the cluster has 2 workers"):
        of(WORKERS)
    hosts(3)
    with pytest.raises(errors.InvalidInput, match=r"3 host\(s\), which do not divide the 4 core"):
        of(())
    hosts(None)
    monkeypatch.setenv(INPUT_HOSTS_VARIABLE, "both")
    with pytest.raises(errors.InvalidInput, match="INPUT_HOSTS='both' must be a positive number"):
        of(())


def read(cores: CoreLayout, *datasets: list[list[int]]) -> tuple[Any, Any]:
    """Returns the features of each core and a session, for the datasets of calls, of batches."""
    calls = iter(datasets)

    def read_input() -> Any:
        batches = next(calls)
        return tf.data.Dataset.from_tensor_slices(np.array(batches, np.int64))

    batches, hooks = read_per_core(read_input, cores)
    for hook in hooks:
        hook.begin()
    session = tf.Session()
    for hook in hooks:
        hook.after_create_session(session, None)
    return [features for features, _ in batches], session


@pytest.mark.parametrize(
    ("input_mode", "batch_axis", "datasets", "expected"),
    [
        (Modes.PER_HOST_V1, None, [[[0, 1]], [[2, 3]]], [[0], [1], [2], [3]]),
        (Modes.PER_HOST_V1, (0,), [[[0, 1]], [[2, 3]]], [[0], [1], [2], [3]]),
        (Modes.PER_HOST_V2, None, [[[0], [1]], [[2], [3]]], [[0], [1], [2], [3]]),
        (Modes.PER_SHARD_V1, None, [[[0]], [[1]], [[2]], [[3]]], [[0], [1], [2], [3]]),
    ],
)
def test_cores_get_what_their_host_reads(
    input_mode: int, batch_axis: Any, datasets: list[Any], expected: list[Any]
) -> None:
    """The first cores belong to the first host."""
    layout = CoreLayout(CORES, input_mode, batch_axis, hosts=(THIS_PROCESS,) * HOSTS)
    with tf.Graph().as_default():
        features, session = read(layout, *datasets)
        assert [each.tolist() for each in session.run(features)] == expected


def _in_map(values: Any) -> Any:
    return tf.py_func(lambda x: x, [values], tf.int64)


def _generate() -> Iterator[list[int]]:
    yield [1, 2]


INPUTS = {
    "ops": (lambda data: data.map(lambda x: x + 1), False),
    "in a map": (lambda data: data.map(_in_map), True),
    "in a dataset of datasets": (
        lambda data: data.flat_map(lambda x: tf.data.Dataset.from_tensors(x).map(_in_map)),
        True,
    ),
    "in a branch": (
        lambda data: data.map(lambda x: tf.cond(x[0] > 0, lambda: _in_map(x), lambda: x)),
        True,
    ),
    "in a tf.function": (lambda data: data.map(lambda x: tf.function(_in_map)(x)), True),
    "in a generator": (lambda data: tf.data.Dataset.from_generator(_generate, tf.int64), True),
    "without a dataset": (lambda data: _in_map(tf.constant([1], tf.int64)), True),
}


@pytest.mark.parametrize("name", INPUTS)
def test_an_input_that_calls_python_stays_here(name: str) -> None:
    """All its ops do, also where functions of the graph call it; others are on their worker."""
    make, in_python = INPUTS[name]
    notified: list[Any] = []

    def read_input() -> Any:
        with tf.device("/cpu:0"):  # as programs have it
            return make(tf.data.Dataset.from_tensor_slices(np.zeros([2, 1], np.int64)))

    layout = CoreLayout(2, Modes.PER_HOST_V1, hosts=WORKERS)
    # As in a cluster, whose device function lets bodies of functions see the devices around them.
    with tf.Graph().as_default() as graph, graph.device(following(None)):
        _, hooks = read_per_core(read_input, layout, None, lambda *args: notified.append(args))
        for hook in hooks:
            hook.begin()
        places = {op.device for op in graph.get_operations() if op.device}
        iterators = [op for op in graph.get_operations() if op.type == "IteratorV2"]
        assert len(iterators) == (0 if name == "without a dataset" else 2)
        functions = graph.as_graph_def().library.function
    assert places == ({THIS_PROCESS} if in_python else set(WORKERS))
    of_functions = {node.device for function in functions for node in function.node_def}
    assert not {device for device in of_functions if "/job:" in device}
