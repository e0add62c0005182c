"""The graph and session of a task that trains with its own graph, tested without a cluster."""

from __future__ import annotations

import pathlib
import threading
import types
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.cluster.test_placement_of_ops import ADDRESSES, set_task, task_of
from compat_tests.support.local_cluster import free_addresses
from estimator_bridge import errors
from estimator_bridge import estimator as est
from estimator_bridge.runtime.cluster import tasks
from estimator_bridge.runtime.loop.session_interruptions import LoopProgress
from estimator_bridge.runtime.loop.train_and_evaluate import start_delay
from estimator_bridge.runtime.step import clients
from estimator_bridge.runtime.step.model_step import new_graph

v1 = tf.compat.v1


def make(folder: pathlib.Path, kind: str, **options: Any) -> Any:
    """Returns an estimator of three variables and a matrix product."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        for name in ("first", "second"):
            features = tf.matmul(features, v1.get_variable(name, [2, 2]))
        loss = tf.reduce_sum(features)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return est.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    if kind == "plain":
        return est.Estimator(model_fn, str(folder), est.RunConfig(**options))
    config = est.tpu.RunConfig(**options)
    return est.tpu.TPUEstimator(
        model_fn, str(folder), config, use_tpu=False, train_batch_size=2, eval_batch_size=2
    )


def input_fn(params: Any) -> Any:
    return tf.data.Dataset.from_tensors((tf.ones([2, 2]), tf.ones([2]))).repeat()


@pytest.mark.parametrize("kind", ["plain", "tpu"])
@pytest.mark.parametrize("job, number", [("chief", 0), ("master", 0), ("worker", 1)])
def test_variables_are_on_the_servers_and_the_rest_is_here(
    kind: str, job: str, number: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables take turns on the servers, the global step first; other ops are on this task."""
    set_task(monkeypatch, job, number)
    training = make(tmp_path, kind)._job("train", input_fn, None, None)
    here = f"/job:{job}/task:{number}"
    with new_graph(None, training.device_fn()) as graph:
        step = training.build()
        names = [variable.op.name for variable in v1.global_variables()]
        counters = len(graph.get_operations())
        LoopProgress(step.train_op, training.client.device).count()
    places = {name: task_of(graph.get_operation_by_name(name)) for name in names}
    assert names[:3] == ["global_step", "first", "second"]
    servers = ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert [places[name] for name in names[:3]] == servers
    assert {task_of(op) for op in graph.get_operations() if op.type == "MatMul"} == {here}
    # The counters of a session are this task's own, not of a name that all tasks share.
    added = [op for op in graph.get_operations()[counters:] if op.type == "VarHandleOp"]
    assert {task_of(op) for op in added} == {here}
    assert list(training.session_config().device_filters) == ["/job:ps", here]


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_evaluations_are_of_this_process(
    mode: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluation and prediction read checkpoints, and ask no other task."""
    set_task(monkeypatch)
    job = make(tmp_path, "tpu")._job(mode, input_fn, None, None)
    assert (job.client.cluster, job.master("grpc://a:1")) == (None, "")


@pytest.mark.parametrize(
    "job, writes", [("chief", [True, False, False]), ("master", [False, True, False])]
)
def test_one_task_writes_summaries(job: str, writes: list[bool]) -> None:
    """It is the chief, or the first worker beside a master, which is busy with evaluations."""
    spec = {job: ["a:1"], **ADDRESSES}
    places = [(job, 0), ("worker", 0), ("worker", 1)]
    all_clients = [clients.BetweenGraph(tasks.Cluster(spec, *place)) for place in places]
    assert [each.writes_summaries for each in all_clients] == writes


@pytest.mark.parametrize(
    "number, longest, seconds", [(0, None, 5), (3, None, 20), (50, None, 60), (3, 7, 7), (3, 0, 0)]
)
def test_workers_begin_after_the_chief(number: int, longest: int | None, seconds: float) -> None:
    """Worker i waits 5 (i + 1) seconds, or as long as the RunConfig allows, as with stock."""
    config = types.SimpleNamespace(experimental_max_worker_delay_secs=longest, task_id=number)
    assert start_delay(config) == seconds


@pytest.mark.parametrize("kind", ["plain", "tpu"])
@pytest.mark.parametrize("name", ["train_distribute", "eval_distribute"])
def test_a_strategy_beside_a_cluster_is_refused(
    kind: str, name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_task(monkeypatch)
    strategy = v1.distribute.OneDeviceStrategy("/cpu:0")
    with pytest.raises(errors.InvalidInput, match=r"2 ps; this is chief 0, and .* has a strategy"):
        make(tmp_path, kind, **{name: strategy})


@pytest.mark.parametrize("job, part", [("chief", 0), ("worker", 2)])
def test_a_strategy_of_parameter_servers_is_what_a_cluster_does(
    job: str, part: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken, and input_fns get the part of the input that is their task's."""
    set_task(monkeypatch, job, part and 1)
    strategy = v1.distribute.experimental.ParameterServerStrategy()
    contexts = []

    def sharded_input_fn(params: Any, input_context: Any = None) -> Any:
        contexts.append(input_context)
        return input_fn(params)

    estimator = make(tmp_path, "tpu", train_distribute=strategy)
    job = estimator._job("train", sharded_input_fn, None, None)
    assert job.strategy is None
    with new_graph(None, job.device_fn()):
        job.build()
    (context,) = contexts
    assert (context.num_input_pipelines, context.input_pipeline_id) == (3, part)


def test_a_strategy_of_parameter_servers_is_refused_with_a_tpu(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With use_tpu=True the estimator says which strategies there are."""
    set_task(monkeypatch)
    strategy = v1.distribute.experimental.ParameterServerStrategy()
    config = est.tpu.RunConfig(train_distribute=strategy)
    with pytest.raises(errors.InvalidInput, match=r"`train_distribute`=.*cannot run an estimator"):
        est.tpu.TPUEstimator(lambda features, mode: None, str(tmp_path), config, train_batch_size=2)


def test_a_worker_hears_that_it_is_to_train() -> None:
    """A worker that serves goes on when the chief says that a training has ended."""
    spec = free_addresses(chief=1, worker=1)
    chief, worker = tasks.Cluster(spec, "chief", 0), tasks.Cluster(spec, "worker", 0)
    for task in (chief, worker):
        task.target()
    heard = threading.Event()
    thread = threading.Thread(target=worker.wait_for_end, args=[heard.set])
    thread.start()
    chief.say_workers_train()
    assert heard.wait(60)
    assert thread.is_alive()
    chief.tell_all(workers_train=False)
    thread.join(60)
    assert not thread.is_alive()
