"""The engine under a ParameterServerStrategy, in a process of its own, for the tests beside it.

A coordinator is connected to its cluster for good, so each run is a process. Workers and parameter
servers are in it, too, unless TF_CONFIG names others. Run as
`python -m compat_tests.cluster.strategy_program ACTION ARGUMENTS`; an action of `ACTIONS` leaves
its results in a file.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import pickle
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf2_engine
from compat_tests.cases.optimizers import initial_weights
from compat_tests.engine.test_conformance import arguments_of, spec_of
from compat_tests.engine.test_parameter_servers import combinations, rows_of
from compat_tests.support.local_cluster import free_addresses, start_tasks
from tf2_engine import SGD, Adagrad, Adam, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors
from tf2_engine.backends import StrategyPsDriver

Values = dict[tuple[str, str], np.ndarray]
"""Rows of every variable of every table, by ids."""

ROWS, OTHER_ROWS, BATCH, STEPS = 53, 11, 8, 4
EMB = tf.tpu.experimental.embedding


def connect(workers: int, servers: int) -> Any:
    """Returns the coordinator of a cluster in this process, or of the one in TF_CONFIG."""
    if "TF_CONFIG" in os.environ:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    else:
        cluster = start_servers(worker=workers, ps=servers)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc"
        )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def start_servers(**counts: int) -> dict[str, list[str]]:
    """Starts tasks of jobs in this process; returns their addresses."""
    cluster = free_addresses(**counts)
    start_tasks(cluster, *cluster)
    return cluster


def read(embedding: TPUEmbedding) -> Values:
    values = {}
    for name, table in embedding.tables.items():
        for kind, parts in table.variables.items():
            rows = np.empty((table.plan.rows, table.plan.dim), np.float32)
            for part, variable in enumerate(parts):
                rows[rows_of(table, part)] = variable.numpy()
            values[name, kind] = rows
    return values


def numbers(out: str, turn: str, kinds: str, layout: str) -> None:
    """Trains synchronous steps of two functions, a table of each optimizer of `kinds`."""
    group = combinations(2, int(turn), kinds.split(","))
    coordinator = connect(2, 3)
    with coordinator.strategy.scope():
        step = tf.Variable(0.0, name="step")
        driver = StrategyPsDriver(layout=layout, whole_up_to=0)  # type: ignore[arg-type]
        embedding = TPUEmbedding(spec_of(group, step), driver=driver, synchronous=2)
        embedding.build_for([one.shape for one in group])
    for place, one in enumerate(group):
        table = embedding.tables[f"table{place}"]
        for part, shard in enumerate(table.variables["parameters"]):
            shard.assign(initial_weights(one.case, place)[rows_of(table, part)])

    @tf.function(autograph=False, reduce_retracing=True)
    def run(core: Any, values: Any, weights: Any, gradients: Any) -> Any:
        embedding.enqueue(values, weights)
        activations = embedding.dequeue()
        embedding.apply_gradients(gradients, core=core)
        return activations

    steps: list[Any] = []
    for number, (values, weights, gradients) in enumerate(arguments_of(group)):
        step.assign(float(number))
        results = [
            # The last first: sums are in the order of the cores, not of time.
            coordinator.schedule(
                run, args=(tf.constant(core), values[core], weights[core], gradients[core])
            )
            for core in (1, 0)
        ]
        coordinator.join()
        embedding.apply_step()
        activations = [tf.nest.map_structure(np.asarray, each.fetch()) for each in results[::-1]]
        steps.append((activations, read(embedding)))
    pathlib.Path(out).write_bytes(pickle.dumps(steps))


def feature_config() -> dict[str, Any]:
    """Returns two tables, of Adagrad and Adam, as a program of stock's has them."""
    big = EMB.TableConfig(ROWS, 4, combiner="mean", name="big", optimizer=Adagrad(0.1))
    small = EMB.TableConfig(OTHER_ROWS, 3, combiner="sum", name="small", optimizer=Adam(0.01))
    return {
        "one": EMB.FeatureConfig(big, name="one"),
        "many": EMB.FeatureConfig(big, name="many"),
        "other": EMB.FeatureConfig(small, name="other"),
    }


def batch_of(step: int) -> dict[str, Any]:
    """Returns a batch of which some rows collide."""
    random = np.random.default_rng(step)
    many = tf.RaggedTensor.from_row_lengths(
        random.integers(0, ROWS, 2 * BATCH), tf.constant([0, 1, 2, 3, 4, 3, 2, 1], tf.int64)
    )
    return {
        "one": tf.constant(random.integers(0, ROWS, BATCH)),
        "many": many,
        "other": tf.constant(random.integers(0, OTHER_ROWS, BATCH)),
    }


def gradients_of(activations: Mapping[str, Any]) -> dict[str, Any]:
    return {key: 0.5 * activation + 0.125 for key, activation in activations.items()}


def step_of(embedding: TPUEmbedding) -> Callable[..., Any]:
    """Returns a step of an engine as a tf.function."""

    @tf.function(autograph=False, reduce_retracing=True)
    def run(batch: Any) -> Any:
        embedding.enqueue(batch)
        activations = embedding.dequeue()
        embedding.apply_gradients(gradients_of(activations))
        return activations

    return run


def start_rows(name: str, ids: Any, dim: int) -> np.ndarray:
    """Returns the initial rows of ids of a table, the same for every cluster."""
    rows = np.random.default_rng(len(name)).normal(size=(ROWS, dim)).astype(np.float32)
    return rows[ids]


def set_start(embedding: TPUEmbedding) -> None:
    """Gives every row of the parameters its initial value."""
    for name, table in embedding.tables.items():
        for part, shard in enumerate(table.variables["parameters"]):
            ids = np.arange(table.plan.rows)[rows_of(table, part)]
            shard.assign(start_rows(name, ids, table.plan.dim))


def one_by_one(out: str, folder: str, servers: str, restored: str = "") -> None:
    """Trains with one function at a time; from a checkpoint, if one is named; writes another.

    A SavedModel of what was trained is in `folder`, too.
    """
    coordinator = connect(1, int(servers))
    with coordinator.strategy.scope():
        embedding = TPUEmbedding(feature_config(), driver=StrategyPsDriver(whole_up_to=0))
    checkpoint = tf.train.Checkpoint(embedding=embedding)
    if restored:
        # Before the engine is built, from its first batch.
        status = checkpoint.read(restored)
    else:
        embedding.build_for_batch(batch_of(0))
        set_start(embedding)
    first = STEPS if restored else 0
    step = step_of(embedding)
    for number in range(first, first + STEPS):
        coordinator.schedule(step, args=(batch_of(number),))
        coordinator.join()
    if restored:
        status.assert_existing_objects_matched()
    path = checkpoint.write(f"{folder}/after-{servers}-{first + STEPS}")
    export(embedding, f"{folder}/served-{servers}-{first + STEPS}")
    served = tf.nest.map_structure(np.asarray, embedding.embedding_lookup(batch_of(99)))
    pathlib.Path(out).write_bytes(pickle.dumps((read(embedding), path, served)))


def export(embedding: TPUEmbedding, folder: str) -> None:
    """Writes a SavedModel that looks the features of `batch_of` up."""
    model = tf.Module()
    model.embedding = embedding
    ragged = tf.RaggedTensorSpec([None, None], tf.int64, row_splits_dtype=tf.int64)
    ids = tf.TensorSpec([None], tf.int64)

    @tf.function(input_signature=[{"one": ids, "many": ragged, "other": ids}])
    def look_up(features: Any) -> Any:
        return embedding.embedding_lookup(features)

    model.look_up = look_up
    tf.saved_model.save(model, folder)


def together(out: str) -> None:
    """Trains with functions of two workers at the same time, whose updates are whole numbers."""
    coordinator = connect(2, 2)
    with coordinator.strategy.scope():
        embedding = TPUEmbedding(of_counts(4), driver=StrategyPsDriver(whole_up_to=0))

    @tf.function(autograph=False)
    def run(ids: Any) -> Any:
        embedding.enqueue({"ids": ids})
        activations = embedding.dequeue()
        embedding.apply_gradients({"ids": -tf.ones_like(activations["ids"])})

    for number in range(100):
        coordinator.schedule(run, args=(tf.constant([0, 1, 1, 2 + number % 2]),))
    coordinator.join()
    rows = read(embedding)["t", "parameters"]
    pathlib.Path(out).write_text(json.dumps({"rows": rows.tolist(), "repr": repr(embedding)}))


def run_again(out: str) -> None:
    """Runs the function of a core several times in one step, as for a worker that was lost."""
    coordinator = connect(2, 2)
    with coordinator.strategy.scope():
        driver = StrategyPsDriver(whole_up_to=0)
        embedding = TPUEmbedding(of_counts(4), driver=driver, synchronous=2)

    @tf.function(autograph=False)
    def run(core: Any, gradient: Any) -> Any:
        embedding.enqueue({"ids": tf.range(4)})
        activations = embedding.dequeue()
        gradients = {"ids": tf.fill(tf.shape(activations["ids"]), gradient)}
        embedding.apply_gradients(gradients, core=core)

    def send(core: int, gradient: float) -> None:
        coordinator.schedule(run, args=(tf.constant(core), tf.constant(gradient)))
        coordinator.join()

    results: dict[str, Any] = {"rows": []}

    def apply() -> None:
        embedding.apply_step()
        results["rows"].append(read(embedding)["t", "parameters"].tolist())

    send(0, 100.0)
    send(1, 1.0)
    send(0, 2.0)  # in place of the first
    apply()
    send(1, 4.0)
    results["missing"] = message_of(errors.OutOfOrder, embedding.apply_step)
    send(0, 8.0)
    apply()
    try:
        with embedding.step():
            send(0, 1000.0)
            send(1, 1000.0)
            raise KeyError
    except KeyError:
        pass
    results["dropped"] = message_of(errors.OutOfOrder, embedding.apply_step)
    results["no core"] = message_of(tf.errors.InvalidArgumentError, lambda: send(2, 1.0))
    send(0, 16.0)
    send(1, 32.0)
    apply()
    results["in a function"] = message_of(errors.OutOfOrder, tf.function(embedding.apply_step))
    pathlib.Path(out).write_text(json.dumps(results))


def message_of(kind: type[Exception], function: Callable[[], object]) -> str:
    try:
        function()
    except kind as error:
        return str(error)
    return f"no {kind.__name__}"


def keras_fit(out: str, folder: str) -> None:
    """Trains a model with the layer by `fit`, and by functions that are scheduled."""
    from tf2_engine.keras import TPUEmbedding as Layer

    coordinator = connect(1, 2)

    def make() -> Any:
        with coordinator.strategy.scope():
            layer = Layer(feature_config())
            model = tf.keras.Sequential([layer, Join()])
            model.compile(tf.keras.optimizers.SGD(0.0), "mse")
        layer.embedding.build_for_batch(batch_of(0))
        set_start(layer.embedding)
        return model

    batches = [(batch_of(step), tf.ones([BATCH, 1])) for step in range(STEPS)]
    dataset = tf.data.Dataset.from_tensors(batches[0])
    for each in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(each))
    fitted = make()
    fitted.fit(dataset, epochs=1, steps_per_epoch=STEPS, verbose=0)
    metrics = fitted.evaluate(dataset, steps=STEPS, verbose=0)
    predictions = fitted.predict(dataset, steps=STEPS, verbose=0)
    looped = make()

    @tf.function(autograph=False, reduce_retracing=True)
    def run(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(looped(features, training=True) - labels))
        tape.gradient(loss, looped.trainable_variables)

    for features, labels in batches:
        coordinator.schedule(run, args=(features, labels))
        coordinator.join()
    path = tf.train.Checkpoint(embedding=fitted.layers[0].embedding).write(f"{folder}/fitted")
    results = {
        "fitted": read(fitted.layers[0].embedding),
        "looped": read(looped.layers[0].embedding),
        "devices": devices_of(fitted.layers[0].embedding),
        "metrics": float(metrics),
        "predictions": len(predictions),
        "path": path,
    }
    pathlib.Path(out).write_bytes(pickle.dumps(results))


def devices_of(embedding: TPUEmbedding) -> list[str]:
    """Returns the devices of all variables of an engine."""
    parts = [parts for table in embedding.tables.values() for parts in table.variables.values()]
    return sorted({variable.device for shards in parts for variable in shards})


def refusals(out: str) -> None:
    """Writes the messages of everything that is refused."""
    coordinator = connect(1, 1)
    table = TableSpec("t", 4, 2, "sum", SGD(1.0))

    def make(of_spec: Mapping[str, Any], **settings: Any) -> TPUEmbedding:
        spec = EngineSpec((table,), (FeatureSpec("ids", "t"),), **of_spec)
        return TPUEmbedding(spec, **settings)

    ids = {"ids": tf.constant([1])}
    results = {}
    with coordinator.strategy.scope():
        for name, (of_spec, settings) in REFUSED_SETTINGS.items():
            results[name] = message_of(
                errors.InvalidSpec, lambda of=of_spec, more=settings: make(of, **more)
            )
        one, several = make({}), make({}, synchronous=2)
        several.build_for_batch(ids)
        apply = several.differentiable_lookup(ids)[1]
    results["eager"] = message_of(errors.OutOfOrder, lambda: one.enqueue(ids))
    results["device"] = message_of(
        errors.InvalidInput, lambda: one.enqueue(ids, device="/device:CPU:0")
    )
    ones = {"ids": tf.ones([1, 2])}
    results["differentiable"] = message_of(errors.OutOfOrder, lambda: apply(ones))
    for name, embedding, core in (
        ("core missing", several, None),
        ("core beyond", several, 2),
        ("core between", several, 0.5),
        ("core of none", one, 0),
    ):
        embedding.build_for_batch(ids)
        results[name] = message_of(
            errors.EngineError,
            lambda of=embedding, core=core: of.apply_gradients(ones, core=core),
        )
    results["no step"] = message_of(errors.OutOfOrder, one.apply_step)
    outside = tf.distribute.OneDeviceStrategy("/cpu:0")
    with outside.scope():
        results["outside"] = message_of(errors.InvalidSpec, lambda: make({}, driver="ps"))
        results["synchronous outside"] = message_of(
            errors.InvalidSpec, lambda: make({}, synchronous=2)
        )
    pathlib.Path(out).write_text(json.dumps(results))


REFUSED_SETTINGS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "pipelined": ({"pipeline_execution_with_tensor_core": True}, {}),
    "profiled": ({"profile_data_directory": "folder"}, {}),
    "cores": ({}, {"num_cores": 2}),
    "hosts": ({}, {"num_hosts": 2}),
    "none": ({}, {"synchronous": 0}),
}


def serve() -> None:
    """Serves as the task of TF_CONFIG, until it is killed."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    )
    server.join()


def steady(out: str, synchronous: str, steps: str) -> None:
    """Trains steps of two functions as the chief of TF_CONFIG; writes how far it is.

    Without `synchronous` steps each function counts the runs of its batch in a table.
    """
    coordinator = connect(0, 0)
    if synchronous == "True":
        make, count = functools.partial(TPUEmbedding, feature_config(), synchronous=2), 2
    else:
        make, count = functools.partial(TPUEmbedding, of_counts(int(steps))), 1
    with coordinator.strategy.scope():
        embedding = make(driver=StrategyPsDriver(whole_up_to=0))
    first = batch_of(0) if synchronous == "True" else {"ids": tf.constant([0])}
    embedding.build_for_batch(first)
    if synchronous == "True":
        set_start(embedding)

    @tf.function(autograph=False, reduce_retracing=True)
    def run(batch: Any, core: Any) -> None:
        embedding.enqueue(batch)
        activations = embedding.dequeue()
        if count == 2:
            embedding.apply_gradients(gradients_of(activations), core=core)
        else:
            embedding.apply_gradients({"ids": -tf.ones_like(activations["ids"])})

    progress = pathlib.Path(f"{out}.progress")
    for step in range(int(steps)):
        for core in range(count):
            batch = batch_of(2 * step + core) if count == 2 else {"ids": tf.constant([step])}
            coordinator.schedule(run, args=(batch, tf.constant(core)))
        if count == 2:
            coordinator.join()
            embedding.apply_step()
        else:
            time.sleep(0.02)  # so that the steps go on while tasks are killed
        progress.write_text(str(step))
    coordinator.join()
    pathlib.Path(out).write_bytes(pickle.dumps(read(embedding)))


def of_counts(rows: int) -> EngineSpec:
    """Returns a table of zeros, to each of whose rows a step adds one."""
    table = TableSpec("t", rows, 2, "sum", SGD(1.0), tf.zeros_initializer())
    return EngineSpec((table,), (FeatureSpec("ids", "t"),))


def page(out: str, path: str) -> None:
    """Executes the blocks of Python of a page, as the chief of a cluster; writes its checkpoint."""
    cluster = start_servers(worker=1, ps=2)
    cluster |= free_addresses(chief=1)
    task = {"type": "chief", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})

    def make_model() -> Any:
        return tf.keras.Sequential([Join(), tf.keras.layers.Dense(1)])

    def dataset_of_worker() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors((batch_of(0), tf.ones([BATCH, 1]))).repeat()

    names = {
        **{"tf": tf, "tf2_engine": tf2_engine, "STEPS": 2, "rule": Adagrad(0.1)},
        **{"feature_config": feature_config(), "make_model": make_model},
        "loss_of": lambda scores, labels: tf.reduce_mean(tf.square(scores - labels)),
        "dataset_of_worker": dataset_of_worker,
        "batch_of": lambda step, core: (batch_of(2 * step + core), tf.ones([BATCH, 1])),
    }
    blocks = re.findall(r"^```python\n(.*?)^```$", pathlib.Path(path).read_text(), re.M | re.S)
    for block in blocks:
        exec(block.replace("/shared/model", f"{out}.model"), names)
    pathlib.Path(out).write_bytes(pickle.dumps(read(names["embedding"])))


class Join(tf.keras.layers.Layer):  # type: ignore[misc]
    """Adds all activations of a sample up."""

    def call(self, activations: Any) -> Any:
        """Returns [batch, 1]."""
        return sum(tf.reduce_sum(each, -1, keepdims=True) for each in activations.values())


ACTIONS: Sequence[Callable[..., None]] = (
    *(numbers, one_by_one, together, run_again, keras_fit, refusals, page, serve, steady),
)

if __name__ == "__main__":
    action, *arguments = sys.argv[1:]
    {each.__name__: each for each in ACTIONS}[action](*arguments)
    sys.stdout.flush()
    os._exit(0)  # The servers never end by themselves.
