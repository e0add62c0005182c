"""The software TPU's cores, shards, order of steps, and ops that engines do not use.

Oracle: the float64 references, which share no code with the software TPU. The tests use no engine,
neither stock's nor ours; with engines test_optimizers.py, test_lookup.py and
test_stock_conformance.py check its rules and inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.conftest import Array
from compat_tests.engine import test_optimizers as optimizers
from compat_tests.references import inputs as reference_inputs
from compat_tests.references.tolerance import assert_close
from compat_tests.references.training import Lookup, ReferenceTable, assert_step
from compat_tests.support import software_tpu as soft
from tf2_engine import (
    SGD,
    Adagrad,
    EngineSpec,
    FeatureSpec,
    MDLAdagradLight,
    TableSpec,
    tf_compat,
)

# Rules


def test_colliding_ids_are_applied_core_by_core() -> None:
    """Without accumulation two cores give the numbers of TensorFlow's own two-core test.

    The case is that of the test of the same name in test_optimizers.py, which tells it.
    """
    optimizer = Adagrad(0.12, initial_accumulator_value=0.1, use_gradient_accumulation=False)
    spec = EngineSpec(
        (TableSpec("table", 8, 3, "mean", optimizer),), (FeatureSpec("ids", "table"),)
    )
    device = soft.Device(spec, [(2,)], num_cores=2)
    indices = [[0, 0], [0, 1], [1, 0], [1, 1]]
    device.enqueue_all([[soft.sparse(indices, ids)] for ids in ([0, 1, 1, 2], [1, 2, 2, 3])])
    device.step([[[[3.0] * 3, [2.0] * 3]], [[[1.0] * 3, [0.0] * 3]]])
    optimizers.assert_collided(device.read("table"), "device")


def test_an_optimizer_without_a_public_rule_is_looked_up_only() -> None:
    """MDLAdagradLight loads and retrieves its slots; its gradients are refused by its table."""
    spec = EngineSpec(
        (TableSpec("table", 3, 2, "sum", MDLAdagradLight(0.1)),), (FeatureSpec("ids", "table"),)
    )
    device = soft.Device(spec, [(2,)])
    arrays = {
        kind: np.full((3, 2), number, np.float32)
        for number, kind in enumerate(device.read("table"), 1)
    }
    device.load("table", arrays)
    for kind, values in device.read("table").items():
        np.testing.assert_array_equal(values, arrays[kind])

    device.enqueue(0, [soft.dense([0, 2])])
    with pytest.raises(tf.errors.UnimplementedError, match="table 'table' has an optimizer whose"):
        device.step([[np.zeros((2, 2))]])


# Inputs

ROWS, DIM = 9, 2
TABLE = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
BATCH = 4


def one_table(rate: float = 0.5, **options: Any) -> EngineSpec:
    table = TableSpec("words", ROWS, DIM, "sum", SGD(rate))
    return EngineSpec((table,), (FeatureSpec("title", "words"),), **options)


INDICES = np.array([[0, 0], [0, 1], [2, 0]], np.int64)
ROW_SPLITS = np.array([0, 2, 2, 3, 3], np.int64)
OLDER: dict[str, dict[str, Any]] = {
    "EnqueueTPUEmbeddingSparseBatch": {"sample_indices": [np.array([0, 0, 2], np.int64)]},
    "EnqueueTPUEmbeddingSparseTensorBatch": {"sample_indices": [INDICES], "table_ids": [0]},
    "EnqueueTPUEmbeddingRaggedTensorBatch": {
        "sample_splits": [ROW_SPLITS],
        "aggregation_weights": [np.array([1.0, 2.0, 0.5], np.float64)],
        "table_ids": [0],
    },
    "DynamicEnqueueTPUEmbeddingArbitraryTensorBatch": {
        "sample_indices_or_row_splits": [INDICES.astype(np.int32)]
    },
    "DynamicEnqueueTPUEmbeddingRaggedTensorBatch": {
        "sample_splits": [ROW_SPLITS],
        "table_ids": [0],
    },
}
"""The arguments of ops by which they differ from each other."""


@pytest.mark.parametrize("name", [*OLDER, "EnqueueTPUEmbeddingIntegerBatch"])
def test_the_other_enqueue_ops_say_the_same(name: str) -> None:
    """Every op that enqueues gives the activations of what it says."""
    device = soft.Device(one_table(), [[4]])
    device.load("words", {"parameters": TABLE})
    if name in OLDER:
        arguments = {
            "embedding_indices": [np.array([1, 1, 5], np.int64)],
            "aggregation_weights": [np.array([1.0, 2.0, 0.5], np.float32)],
            "combiners": ["sum"],
            **OLDER[name],
        }
        expected = np.stack([3 * TABLE[1], 0 * TABLE[0], 0.5 * TABLE[5], 0 * TABLE[0]])
    else:
        arguments = {"batch": [np.array([1, 0, 5, 1], np.int32)]}
        expected = TABLE[[1, 0, 5, 1]]

    getattr(tf.raw_ops, name)(**arguments, mode_override="train", device_ordinal=0)
    ((activation,),) = device.look_up()

    assert_close(expected, activation, n_terms=2, steps=0, scale=10.0, where=name)


@pytest.mark.parametrize("per", ["feature", "table"])
def test_combiners_are_given_per_feature_or_per_table(per: str) -> None:
    tables = tuple(TableSpec(name, ROWS, DIM, "sum", SGD(1.0)) for name in ("a", "b"))
    features = tuple(FeatureSpec(f"{table}{i}", table) for table in "ab" for i in (0, 1))
    device = soft.Device(EngineSpec(tables, features), [[1]] * 4)
    for table in "ab":
        device.load(table, {"parameters": np.ones((ROWS, DIM))})
    combiners = ["sum", "mean", "mean", "sum"] if per == "feature" else ["mean", "sum"]
    two_ids = np.array([[0, 0], [0, 1]], np.int32)

    tf.raw_ops.EnqueueTPUEmbeddingArbitraryTensorBatch(
        sample_indices_or_row_splits=[two_ids] * 4,
        embedding_indices=[np.array([0, 1], np.int64)] * 4,
        aggregation_weights=[soft.NO_WEIGHTS] * 4,
        mode_override="train",
        device_ordinal=0,
        combiners=combiners,
    )
    activations = [float(activation[0, 0]) for activation in device.look_up()[0]]

    assert activations == ([2, 1, 1, 2] if per == "feature" else [1, 1, 2, 2])


def test_lookups_are_quantized() -> None:
    """A quantized table is looked up as the nearest buckets, and updated as if it were not."""
    device = soft.Device(one_table(rate=1.0), [[ROWS]])
    config = tf_compat.TPUEmbeddingConfiguration.FromString(device.config)
    quantization = config.table_descriptor[0].optimization_parameters.simulated_quantization
    quantization.enabled = True
    quantization.clipping_limits.lower.value = -1.0
    quantization.clipping_limits.upper.value = 0.5
    quantization.num_buckets = 4  # -1, -0.5, 0, 0.5
    tf.raw_ops.ConfigureTPUEmbedding(config=config.SerializeToString())
    device.load("words", {"parameters": TABLE})

    device.enqueue(0, [soft.dense(np.arange(ROWS))])
    ((activation,),) = device.step([[np.ones((ROWS, DIM))]])

    np.testing.assert_array_equal(activation, np.floor(np.clip(TABLE, -1, 0.5) * 2 + 0.5) / 2)
    np.testing.assert_array_equal(device.read("words")["parameters"], TABLE - 1)


# Hosts


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("rows", [9, 10, 11])
def test_hosts_hold_the_rows_that_the_strategy_gives_them(strategy: str, rows: int) -> None:
    """Loaded by shards, an id is looked up in the row that div or mod gives it, and updated there.

    Without accumulation, so that the core that owns a row matters too.
    """
    optimizer = Adagrad(0.5, use_gradient_accumulation=False)
    spec = EngineSpec(
        (TableSpec("words", rows, DIM, "sum", optimizer),),
        (FeatureSpec("title", "words"),),
        partition_strategy=strategy,
    )
    first = np.random.default_rng(2).normal(size=(rows, DIM)).astype(np.float32)
    device = soft.Device(spec, [[rows]], num_cores=4, num_hosts=2)
    device.load_parameters("words", first)
    chance = np.random.default_rng(3)
    gradients = chance.uniform(0.5, 1.0, (4, rows, DIM)).astype(np.float32)

    device.enqueue_all([[soft.dense(np.arange(rows))]] * 4)
    activations = device.step([[gradient] for gradient in gradients])

    for core in range(4):
        np.testing.assert_array_equal(activations[core][0], first)
    table = ReferenceTable(
        first,
        "Adagrad",
        {"initial_accumulator_value": optimizer.initial_accumulator_value},
        {"use_gradient_accumulation": False},
    )
    occurrences = reference_inputs.dense(np.arange(rows))
    assert_step(
        [table],
        [Lookup(core, 0, occurrences, activations[core][0], gradients[core]) for core in range(4)],
        device.read("words"),
        0.5,
        strategy,
        rows=first,
        n_terms=1,
        num_cores=4,
        cores_per_host=2,
        sharding=strategy,
    )


# Order

WHOLE = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
"""Whole numbers: every comparison is exact."""


def ids_of(step: int, core: int) -> Array:
    """Returns the ids of a step, of which every step has some."""
    return np.random.default_rng([step, core]).integers(0, 4, BATCH)


def gradient_of(step: int, core: int) -> Array:
    return np.random.default_rng([step, core, 1]).integers(1, 4, (BATCH, DIM)).astype(np.float32)


def updated(rows: Array, step: int, num_cores: int) -> Array:
    """Returns the table after a step at rate 1."""
    rows = rows.copy()
    for core in range(num_cores):
        np.subtract.at(rows, ids_of(step, core), gradient_of(step, core))
    return rows


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("num_cores", [1, 2, 4])
def test_lookups_see_the_updates_that_they_should(num_cores: int, pipelined: bool) -> None:
    """A lookup sees every update before it; with pipelining, not the one just before it.

    Lookups for inference, and who retrieves, see them all.
    """
    spec = one_table(rate=1.0, pipeline_execution_with_tensor_core=pipelined)
    device = soft.Device(spec, [[BATCH]], num_cores=num_cores)
    device.load("words", {"parameters": WHOLE})
    all_cores = range(num_cores)
    states = [WHOLE]  # after each training step

    def check(activations: list[list[Array]], step: int, state: Array, what: str) -> None:
        for core in all_cores:
            np.testing.assert_array_equal(activations[core][0], state[ids_of(step, core)], what)

    for step in range(6):
        device.enqueue_all([[soft.dense(ids_of(step, core))] for core in all_cores])
        activations = device.step([[gradient_of(step, core)] for core in all_cores])
        # After step 3 somebody looks: everything is applied then.
        seen = states[-1] if not pipelined or step in (0, 4) else states[-2]
        check(activations, step, seen, f"step {step}")
        states.append(updated(states[-1], step, num_cores))
        if step == 3:
            device.enqueue_all([[soft.dense(ids_of(9, core))] for core in all_cores], "inference")
            check(device.look_up(), 9, states[-1], "inference")
    np.testing.assert_array_equal(device.read("words")["parameters"], states[-1])


@pytest.mark.parametrize("num_cores", [2, 4])
def test_no_core_looks_up_before_all_cores_have_sent(num_cores: int) -> None:
    """The barrier: the next lookup of any core waits until every core's gradients are there.

    Every core enqueues two batches and looks up the first; cores send one after the other.
    """
    device = soft.Device(one_table(rate=1.0), [[BATCH]], num_cores=num_cores)
    device.load("words", {"parameters": WHOLE})
    for step in (0, 1):
        device.enqueue_all([[soft.dense(ids_of(step, core))] for core in range(num_cores)])
    device.look_up()
    sends = [
        tf.function(lambda core=core: send_on(device, core), autograph=False)
        for core in range(num_cores)
    ]

    second = soft.Waiting(device.look_up)
    for send in sends:
        assert second.waits
        send()
    second.end()

    state = updated(WHOLE, 0, num_cores)
    for core in range(num_cores):
        np.testing.assert_array_equal(second.result[core][0], state[ids_of(1, core)])


def send_on(device: soft.Device, chosen: int) -> None:
    """Sends the first step's gradients on one core alone."""

    def run() -> None:
        core = tf.distribute.get_replica_context().replica_id_in_sync_group
        if tf.get_static_value(core) == chosen:
            device.send([gradient_of(0, chosen)])

    device.strategy.run(run)


def test_a_batch_for_inference_leaves_no_gradient_due() -> None:
    """After lookups for inference a training step goes on; gradients for inference are refused."""
    device = soft.Device(one_table(rate=1.0), [[BATCH]])
    device.load("words", {"parameters": WHOLE})
    for _ in range(3):
        device.enqueue(0, [soft.dense(ids_of(0, 0))], "inference")
        np.testing.assert_array_equal(device.look_up()[0][0], WHOLE[ids_of(0, 0)])
    with pytest.raises(tf.errors.FailedPreconditionError, match="no training batch of this core"):
        device.send([gradient_of(0, 0)])

    device.enqueue(0, [soft.dense(ids_of(0, 0))])
    device.step([[gradient_of(0, 0)]])

    np.testing.assert_array_equal(device.read("words")["parameters"], updated(WHOLE, 0, 1))


def test_batches_queue_up_per_core() -> None:
    """Each core takes its own batches in the order in which they were enqueued."""
    device = soft.Device(one_table(), [[BATCH]], num_cores=2)
    device.load("words", {"parameters": WHOLE})
    for step in range(3):
        device.enqueue(1, [soft.dense(ids_of(step, 1))], "inference")
    for step in range(3):
        device.enqueue(0, [soft.dense(ids_of(step, 0))], "inference")

    for step in range(3):
        activations = device.look_up()
        for core in range(2):
            np.testing.assert_array_equal(activations[core][0], WHOLE[ids_of(step, core)])
