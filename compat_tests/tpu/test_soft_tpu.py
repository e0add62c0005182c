"""SoftTPUStrategy: TensorFlow's own TPUEmbedding runs under it and gives correct results."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.conftest import Array
from compat_tests.support import fake_tpu, fresh
from compat_tests.support.paths import SUITE
from tf2_engine import errors, soft_tpu, tf_compat

CONFIG = tf.tpu.experimental.embedding
NO_DYNAMIC_BATCH = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)
ROWS, DIM, BATCH = 7, 2, 4
RATE = 0.25
FIRST = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
"""Whole numbers, as weights and gradients are: every row and activation is exact."""

PLACES = np.array([[0, 0], [0, 1], [2, 0], [3, 0]])
SAMPLES = {"dense": np.arange(BATCH), "ragged": PLACES[:, 0], "weighted": PLACES[:, 0]}
"""The samples of the ids of each feature."""


@pytest.fixture(autouse=True)
def _stock_runs() -> Iterator[None]:
    with fake_tpu.stock_runs():
        yield


def stock_embedding(strategy: Any, optimizer: str = "SGD") -> Any:
    """Returns stock's TPUEmbedding over one table and three features."""
    table = CONFIG.TableConfig(
        ROWS, DIM, tf.constant_initializer(FIRST), combiner="sum", name="users"
    )
    config = {name: CONFIG.FeatureConfig(table, name=name) for name in SAMPLES}
    with strategy.scope():
        return CONFIG.TPUEmbedding(config, fake_tpu.stock_optimizer(optimizer, learning_rate=RATE))


class Batch:
    """The ids, weights and gradients of one core in one step."""

    def __init__(self, step: int, core: int) -> None:
        chance = np.random.default_rng([step, core])
        self.ids = {name: chance.integers(0, ROWS, BATCH) for name in SAMPLES}
        weights = chance.integers(1, 4, BATCH).astype(np.float32)
        self.gains = {name: weights[:, None] if name == "weighted" else 1.0 for name in SAMPLES}
        self.gradients = {
            name: chance.integers(1, 4, (BATCH, DIM)).astype(np.float32) for name in SAMPLES
        }
        self.weights = tf.SparseTensor(PLACES, weights, [BATCH, 2])
        self.tensors = {
            "dense": tf.constant(self.ids["dense"]),
            "ragged": tf.RaggedTensor.from_value_rowids(self.ids["ragged"], PLACES[:, 0], BATCH),
            "weighted": tf.SparseTensor(PLACES, self.ids["weighted"], [BATCH, 2]),
        }

    def looked_up(self, rows: Array) -> dict[str, Array]:
        """Returns the activations of a table."""
        activations = {name: np.zeros((BATCH, DIM), np.float32) for name in SAMPLES}
        for name, samples in SAMPLES.items():
            np.add.at(activations[name], samples, self.gains[name] * rows[self.ids[name]])
        return activations

    def update(self, rows: Array) -> None:
        """Changes a table as a step of SGD does."""
        for name, samples in SAMPLES.items():
            moved = RATE * self.gains[name] * self.gradients[name][samples]
            np.subtract.at(rows, self.ids[name], moved)


class Job:
    """Stock's TPUEmbedding that trains on given gradients.

    Attributes:
        traces: how often the step was traced.
    """

    def __init__(self, num_cores: int, where: str = "outside", optimizer: str = "SGD") -> None:
        self.strategy = soft_tpu.SoftTPUStrategy(num_cores)
        self.embedding = stock_embedding(self.strategy, optimizer)
        self.embedding.build(BATCH)
        self.traces = 0
        self._where = where
        self._step = tf.function(self._in_step, autograph=False)

    def train(self, batches: list[Batch]) -> list[dict[str, Array]]:
        """Runs one step; returns the activations of each core."""
        parts = (
            [batch.tensors for batch in batches],
            [batch.weights for batch in batches],
            [tf.nest.map_structure(tf.constant, batch.gradients) for batch in batches],
        )
        activations = self._step(*(fake_tpu.distribute(self.strategy, part) for part in parts))
        local = {k: self.strategy.experimental_local_results(v) for k, v in activations.items()}
        return [
            {name: values[core].numpy() for name, values in local.items()}
            for core in range(len(batches))
        ]

    def table(self) -> dict[str, Array]:
        """Returns parameters and slots."""
        self.embedding._retrieve_variables()
        variables = self.embedding._variables["users"].items()
        return {kind: sharded.variables[0].numpy() for kind, sharded in variables}

    def _in_step(self, features: Any, weights: Any, gradients: Any) -> Any:
        self.traces += 1
        none = dict.fromkeys(SAMPLES)
        if self._where == "outside":
            self.embedding.enqueue(features, {**none, "weighted": weights})
        if self._where == "by device":
            for core, device in enumerate(self.strategy.extended.worker_devices):
                self.embedding.enqueue(
                    tf_compat.select_replica(core, features),
                    {**none, "weighted": tf_compat.select_replica(core, weights)},
                    device=device,
                )

        def core(core_features: Any, core_weights: Any, core_gradients: Any) -> Any:
            if self._where == "inside":
                self.embedding.enqueue(core_features, {**none, "weighted": core_weights})
            activations = self.embedding.dequeue()
            self.embedding.apply_gradients(core_gradients)
            return activations

        return self.strategy.run(
            core, args=(features, weights, gradients), options=NO_DYNAMIC_BATCH
        )


@pytest.mark.parametrize("where", ["outside", "inside", "by device"])
@pytest.mark.parametrize("num_cores", [1, 2, 4])
def test_stock_trains_wherever_it_enqueues(num_cores: int, where: str) -> None:
    """Each step looks up what the ones before left, and is traced once.

    Other inputs and optimizers are in test_stock_conformance.py.
    """
    job = Job(num_cores, where)
    rows = FIRST.copy()
    for step in range(3):
        batches = [Batch(step, core) for core in range(num_cores)]
        for core, activations in enumerate(job.train(batches)):
            for name, values in batches[core].looked_up(rows).items():
                np.testing.assert_array_equal(activations[name], values, f"{step}, {core}, {name}")
        for batch in batches:
            batch.update(rows)
        np.testing.assert_array_equal(job.table()["parameters"], rows, f"step {step}")
    assert job.traces == 1


def test_stock_checkpoints_hold_what_is_on_the_tpu(tmp_path: pathlib.Path) -> None:
    """A checkpoint has the trained rows and slots, and restoring brings them back to the TPU."""
    job = Job(2, optimizer="Adam")
    for step in range(2):
        job.train([Batch(step, core) for core in range(2)])
    path = tf.train.Checkpoint(embedding=job.embedding).save(str(tmp_path / "ckpt"))
    saved = job.table()
    trained = job.train([Batch(9, core) for core in range(2)])

    again = Job(2, optimizer="Adam")
    tf.train.Checkpoint(embedding=again.embedding).restore(path).assert_consumed()

    for kind, values in again.table().items():
        np.testing.assert_array_equal(values, saved[kind])
    for one, other in zip(again.train([Batch(9, core) for core in range(2)]), trained, strict=True):
        for name in SAMPLES:
            np.testing.assert_array_equal(one[name], other[name])


def test_batches_are_told_apart_by_name() -> None:
    """A batch that was enqueued under a name is dequeued, and updated, under that name alone."""
    job = Job(1)
    batches = {name: Batch(step, 0) for step, name in enumerate(("first", "second"))}

    @tf.function(autograph=False)
    def step(ids: Any) -> Any:
        for name in batches:
            job.embedding.enqueue(ids[name], name=name)

        def core() -> Any:
            activations = {}
            for name in ("second", "first"):
                activations[name] = job.embedding.dequeue(name=name)["dense"]
                gradients = tf.nest.map_structure(tf.constant, batches[name].gradients)
                job.embedding.apply_gradients(gradients, name=name)
            return activations

        return job.strategy.run(core)

    activations = step({name: batch.tensors for name, batch in batches.items()})

    rows = FIRST.copy()
    for name in ("second", "first"):
        batches[name].gains["weighted"] = 1.0  # they were enqueued without weights
        expected = batches[name].looked_up(rows)["dense"]
        np.testing.assert_array_equal(activations[name].numpy(), expected, name)
        batches[name].update(rows)
    np.testing.assert_array_equal(job.table()["parameters"], rows)


def test_a_program_sees_a_tpu() -> None:
    """Devices, hosts and hardware are named as a TPU's, and `run` is a TPU computation."""
    strategy = soft_tpu.SoftTPUStrategy(3)
    inside = []

    def core() -> Any:
        inside.append(tf_compat.tpu_computation_graph() is not None)
        context = tf.distribute.get_replica_context()
        return tf.cast(context.replica_id_in_sync_group, tf.int64)

    results = strategy.experimental_local_results(tf.function(lambda: strategy.run(core))())

    assert isinstance(strategy, tf.distribute.TPUStrategy)
    assert repr(strategy) == "<SoftTPUStrategy 3 cores>"
    assert strategy.extended.worker_devices == tuple(
        f"/job:localhost/replica:0/task:0/device:TPU:{core}" for core in range(3)
    )
    assert strategy.extended.num_hosts == 1
    hardware = strategy.extended.tpu_hardware_feature.embedding_feature
    assert hardware == tf.tpu.experimental.HardwareFeature.EmbeddingFeature.V1
    assert inside == [True] * 3
    assert tf_compat.tpu_computation_graph() is None
    assert [int(result) for result in results] == [0, 1, 2]


def test_cores_have_their_own_variables_and_sum_over_all() -> None:
    """Mirrored variables, sums over cores, datasets, and loops and branches that sum in them."""
    strategy = soft_tpu.SoftTPUStrategy(2)
    with strategy.scope():
        total = tf.Variable(0.0)
        per_core = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    dataset = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.float32)).batch(4)

    @tf.function
    def step(values: Any) -> Any:
        def core(mine: Any) -> Any:
            context = tf.distribute.get_replica_context()
            summed = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(mine))
            mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_sum(mine))
            if summed > 0.0:
                summed += 0.0 * context.all_reduce(tf.distribute.ReduceOp.SUM, 1.0)
            for _ in tf.range(3):
                total.assign_add(context.all_reduce(tf.distribute.ReduceOp.SUM, 1.0))
            per_core.assign_add(tf.reduce_sum(mine))
            return summed, mean

        return strategy.run(core, args=(values,))

    for values, expected in zip(
        strategy.experimental_distribute_dataset(dataset), (6.0, 22.0), strict=True
    ):
        summed, mean = step(values)
        assert [float(x) for x in strategy.experimental_local_results(summed)] == [expected] * 2
        assert [float(x) for x in strategy.experimental_local_results(mean)] == [expected / 2] * 2
    assert [float(copy) for copy in total.values] == [12.0, 12.0]
    assert float(per_core.read_value()) == 28.0
    assert float(strategy.reduce(tf.distribute.ReduceOp.SUM, summed, None)) == 44.0


def test_the_tpu_can_be_initialized_again() -> None:
    """Stock's initialization empties the TPU, so that another engine can be built; so does its end.

    It returns the topology.
    """
    strategy = soft_tpu.SoftTPUStrategy(2)
    stock_embedding(strategy).build(BATCH)
    with pytest.raises(RuntimeError, match="already initialized"):
        stock_embedding(strategy).build(BATCH)

    topology = tf.tpu.experimental.initialize_tpu_system(strategy.cluster_resolver)
    stock_embedding(strategy).build(BATCH)
    assert tf.raw_ops.IsTPUEmbeddingInitialized()
    tf.tpu.experimental.shutdown_tpu_system(strategy.cluster_resolver)

    assert not tf.raw_ops.IsTPUEmbeddingInitialized()
    assert topology.num_tpus_per_task == 2
    assert topology.device_coordinates.tolist() == [[[0, 0, 0, 0], [1, 0, 0, 0]]]


def test_feeds_bring_tuples_to_their_core_in_order() -> None:
    """Infeed and outfeed are queues of tuples, one for each core and direction."""
    strategy = soft_tpu.SoftTPUStrategy(2)
    kinds = {"dtypes": [tf.float32, tf.int32], "shapes": [[2], []]}
    for number in range(2):
        for core in (1, 0):
            tf.raw_ops.InfeedEnqueueTuple(
                inputs=[tf.fill([2], 10.0 * core + number), tf.constant(number)],
                shapes=kinds["shapes"],
                device_ordinal=core,
            )

    @tf.function(autograph=False)
    def step() -> None:
        def core() -> None:
            floats, integer = tf.raw_ops.InfeedDequeueTuple(**kinds)
            tf.raw_ops.OutfeedEnqueueTuple(inputs=[floats + 1.0, integer])

        strategy.run(core)

    for number in range(2):
        step()
        for core in range(2):
            floats, integer = tf.raw_ops.OutfeedDequeueTuple(**kinds, device_ordinal=core)
            assert floats.numpy().tolist() == [10.0 * core + number + 1.0] * 2
            assert int(integer) == number

    tf.raw_ops.InfeedEnqueueTuple(inputs=[tf.zeros([3])], shapes=[[3]], device_ordinal=0)
    tf.raw_ops.InfeedEnqueueTuple(inputs=[tf.zeros([3])], shapes=[[3]], device_ordinal=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the infeed holds a tuple of 1"):
        step()


def test_two_threads_are_enough() -> None:
    """No kernel blocks a thread: eight cores of one process run on two, and on one."""
    program = SUITE / "programs" / "soft_cores.py"
    for threads in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(program.parents[2])}
        ran = fresh.script(program, threads, 8, env=environment)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines()[-1] == "20 steps"


def test_the_software_tpu_has_the_kernels_that_are_listed() -> None:
    """Every listed op has one kernel; an op that the sources name is listed."""
    soft_tpu.start()
    sources = pathlib.Path(soft_tpu.__file__).parent.glob("native/software_tpu/*_kernels.h")
    text = "".join(source.read_text() for source in sources)
    named = set(re.findall(r'KERNEL\("(\w+)",', text))
    named -= {"LoadTPUEmbedding", "RetrieveTPUEmbedding"}

    assert {name: tf_compat.num_kernels(name) for name in soft_tpu.KERNELS} == dict.fromkeys(
        soft_tpu.KERNELS, 1
    )
    transfers = {name for name in soft_tpu.KERNELS if name.endswith("Parameters")}
    assert named == set(soft_tpu.KERNELS) - transfers
    registered = {
        name
        for name in dir(tf.raw_ops)
        if re.fullmatch(r"(Load|Retrieve)TPUEmbedding\w+Parameters", name)
    }
    assert transfers == registered


def test_without_soft_placement_it_is_refused() -> None:
    strategy = soft_tpu.SoftTPUStrategy(1)
    tf.config.set_soft_device_placement(False)
    try:
        with pytest.raises(errors.InvalidSpec, match=r"set_soft_device_placement\(False\)"):
            soft_tpu.SoftTPUStrategy(1)
        with pytest.raises(errors.InvalidSpec, match=r"set_soft_device_placement\(False\)"):
            tf.function(lambda: strategy.run(lambda: 1.0))()
    finally:
        tf.config.set_soft_device_placement(True)


def test_it_runs_after_a_graph() -> None:
    """A software TPU works in a process where a graph was built before."""
    program = (
        "import tensorflow as tf\n"
        "from tf2_engine import soft_tpu\n"
        "with tf.Graph().as_default(): tf.config.list_logical_devices()\n"
        "with soft_tpu.SoftTPUStrategy(2).scope(): total = tf.Variable(3.0)\n"
        "print([float(copy) for copy in total.values])"
    )
    ran = fresh.code(program, check=True)

    assert ran.stdout.splitlines()[-1] == "[3.0, 3.0]"


@pytest.mark.parametrize("num_cores", [0, -1])
def test_a_tpu_without_cores_is_refused(num_cores: int) -> None:
    with pytest.raises(errors.InvalidSpec, match=f"`num_cores`={num_cores}"):
        soft_tpu.SoftTPUStrategy(num_cores)


def test_ops_that_have_kernels_are_left_alone() -> None:
    """Where an op has a kernel already, as with a real TPU, nothing is loaded."""
    program = (
        "from tf2_engine import errors, soft_tpu, tf_compat\n"
        "tf_compat.num_kernels = lambda name: name == 'CrossReplicaSum'\n"
        "try: soft_tpu.start()\n"
        "except errors.InvalidSpec as error: print(error, soft_tpu.num_waiting())"
    )
    ran = fresh.code(program, check=True)

    assert "already has kernels for CrossReplicaSum" in ran.stdout.splitlines()[-1]
