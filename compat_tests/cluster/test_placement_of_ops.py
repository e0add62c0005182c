"""Placement of a step's ops on a cluster: no tensor as large as a batch passes the client."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge import estimator as est
from estimator_bridge.legacy import parameters
from estimator_bridge.runtime.cluster import task_software, tasks
from estimator_bridge.runtime.step.model_step import new_graph

ADDRESSES = {"worker": ["b:1", "c:1"], "ps": ["d:1", "e:1"]}
BATCH, ROWS, DIM = 8, 60_000, 4
fc = tf.feature_column


def set_task(patch: pytest.MonkeyPatch, job: str = "chief", number: int = 0) -> None:
    """Makes this process a task, by default the chief. The others do not hear when it ends."""
    patch.setattr(tasks, "tell_all_at_exit", lambda cluster, workers_train: None)
    cluster = {"master" if job == "master" else "chief": ["a:1"], **ADDRESSES}
    config = {"cluster": cluster, "task": {"type": job, "index": number}}
    patch.setenv("TF_CONFIG", json.dumps(config))


def have_native_ops(patch: pytest.MonkeyPatch, *jobs: str) -> None:
    """Lets the chief believe that all tasks of some jobs have the native ops."""

    def native_devices(cluster: tasks.Cluster) -> frozenset[str]:
        devices = (*cluster.workers, *cluster.servers)
        return frozenset(device for device in devices if device.startswith(jobs))

    patch.setattr(task_software, "native_devices", native_devices)


def make(folder: pathlib.Path, **options: Any) -> Any:
    """Returns an estimator of one large table, with a model of matrices and a Python function."""
    column = fc.categorical_column_with_identity("ids", ROWS)
    embedded = tf.compat.v1.tpu.experimental.embedding_column(column, DIM)

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        net = tf.compat.v1.feature_column.input_layer(features, [embedded])
        kernel = tf.compat.v1.get_variable("kernel", [DIM, 100])
        head = tf.compat.v1.get_variable("head", [100, 1])
        logits = tf.matmul(tf.nn.dropout(tf.matmul(net, kernel), rate=0.1), head)
        shifted = tf.compat.v1.py_func(lambda values: values, [labels], tf.float32)
        loss = tf.reduce_mean((logits - tf.reshape(shifted, [-1, 1])) ** 2)
        optimizer = tf.compat.v1.tpu.CrossShardOptimizer(tf.compat.v1.train.AdamOptimizer())
        step = tf.compat.v1.train.get_global_step()
        return est.tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss, step), predictions=logits
        )

    spec = est.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=[embedded],
        optimization_parameters=parameters.AdagradParameters(0.1),
        **options.pop("of_spec", {}),
    )
    tpu = est.tpu.TPUConfig(num_shards=options.pop("num_shards", 2))
    return est.tpu.TPUEstimator(
        model_fn,
        model_dir=str(folder),
        config=est.tpu.RunConfig(tpu_config=tpu),
        train_batch_size=BATCH,
        embedding_config_spec=spec,
        **options,
    )


def input_fn(params: Any) -> Any:
    features = {"ids": tf.zeros([BATCH, 1], tf.int64)}
    dataset = tf.data.Dataset.from_tensor_slices((features, tf.zeros([BATCH, 1])))
    return dataset.repeat().batch(params["batch_size"], drop_remainder=True)


GRAPHS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "plain": (False, ()),
    "pipelined": (True, ()),
    "native": (False, ("/job:",)),
    "native, pipelined": (True, ("/job:",)),
    "native servers": (False, ("/job:ps",)),
}
"""Whether an update is pending, and the jobs that have native ops."""


@pytest.fixture(scope="module", params=GRAPHS)
def graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    """The graph of a training step; no task of the cluster runs."""
    is_pipelined, native = GRAPHS[request.param]
    of_spec = {"pipeline_execution_with_tensor_core": is_pipelined}
    with pytest.MonkeyPatch.context() as patch:
        set_task(patch)
        have_native_ops(patch, *native)
        job = make(tmp_path_factory.mktemp("job"), of_spec=of_spec)._job(
            "train", input_fn, None, None
        )
        with new_graph(None, job.device_fn()) as built:
            job.build()
    return built


def task_of(op: Any) -> str:
    """Returns the task of an op as TensorFlow places it; the client is the chief."""
    if "/job:" in op.device:
        return str(op.device.partition("/device:")[0])
    groups = [name.decode().removeprefix("loc:@") for name in op.colocation_groups()]
    beside = [op.graph.get_operation_by_name(name) for name in groups if name != op.name]
    beside += [tensor.op for tensor in op.inputs if tensor.dtype == tf.resource]
    return task_of(beside[0]) if beside else "/job:chief/task:0"


def test_nothing_of_the_size_of_a_batch_passes_through_the_client(graph: Any) -> None:
    """Only scalars, and arguments and results of Python functions, go from and to the client."""
    crossing = {
        (tensor.name, task_of(tensor.op), task_of(op))
        for op in graph.get_operations()
        for tensor in op.inputs
        if "/job:chief/task:0" in (task_of(tensor.op), task_of(op))
        and task_of(tensor.op) != task_of(op)
        and tensor.dtype.base_dtype.is_floating
        and tensor.shape.num_elements() != 1
        and "PyFunc" not in (tensor.op.type, op.type)
    }
    assert crossing == set()
    assert {task_of(op) for op in graph.get_operations() if op.type == "PyFunc"} == {
        "/job:chief/task:0"
    }


def test_variables_are_on_the_servers(graph: Any) -> None:
    """Servers hold a part of the table and its slots each, and the model's variables by size."""
    with graph.as_default():
        places = {v.op.name: task_of(v.op) for v in tf.compat.v1.global_variables()}
    table = [name for name in places if "/part_" in name]
    assert len(table) == 4
    for name in table:
        assert places[name] == f"/job:ps/task:{name[-1]}"
    assert {places["kernel"], places["head"]} == {"/job:ps/task:0", "/job:ps/task:1"}
    assert places["kernel/Adam"] == places["kernel"]


def test_no_rows_are_in_the_graph(graph: Any) -> None:
    """First values are made where rows are: as constants they would pass through the client.

    A GraphDef holds 2 GiB at most.
    """
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    largest = max(node.ByteSize() for node in nodes)
    assert largest < ROWS * DIM * 4 / 100
    assert sum(len(node.attr["value"].tensor.tensor_content) for node in nodes) < 100_000


def test_each_core_is_on_its_worker(graph: Any) -> None:
    """A worker runs the models of its cores, backward pass included."""
    matrices = [op for op in graph.get_operations() if op.type == "MatMul"]
    assert len(matrices) >= 8
    tasks = [task_of(op) for op in matrices]
    assert tasks.count("/job:worker/task:0") == tasks.count("/job:worker/task:1") == len(tasks) / 2


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another engine": ({"engine": "software_tpu"}, "`engine`='software_tpu'"),
    "cores": ({"num_shards": 3}, "3 cores cannot be spread evenly over 2 workers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_cluster_cannot_run_is_refused(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_task(monkeypatch)
    options, message = REFUSED[name]
    with pytest.raises((errors.InvalidInput, errors.InvalidSpec), match=message):
        make(tmp_path, **options)
