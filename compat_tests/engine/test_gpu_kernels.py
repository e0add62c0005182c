"""Steps on a GPU equal those on the CPU and the reference, and run entirely on the GPU.

Without a GPU, this machine's CPU runs the GPU kernels. TensorFlow's list of kernels tells which ops
can run on a GPU, and which tensors would have to pass through its host. On a machine with a GPU the
same tests run on it, except those that compare bits with a CPU.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases import in_turn, pairwise
from compat_tests.cases.optimizers import CASES, COMBINERS, KINDS
from compat_tests.engine import test_conformance as conformance
from compat_tests.support import gpu
from tf2_engine import Adagrad, Adam, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding
from tf2_engine.backends import HostDriver
from tf2_engine.native import loading
from tf2_engine.types import Object

FACTORS = {name: levels for name, levels in conformance.FACTORS.items() if name != "driver"}
FACTORS["place"] = ("1x1", "1x2", "3x1 mod")
FACTORS["input"] = ("dense", "sequence", "weighted ragged")

BATCH, TABLES, FEATURES = 16, 3, 4


def combinations(*modes: str) -> list[conformance.Combination]:
    """Returns few combinations that hold every pair of levels, all on the kernels of GPUs."""
    refused = frozenset(
        pair for pair in conformance.REFUSED_HERE if {factor for factor, _ in pair} <= set(FACTORS)
    )
    rows = [{**row, "driver": "gpu"} for row in pairwise({**FACTORS, "mode": modes}, refused)]
    return [
        conformance.Combination(**row) for row in in_turn(rows, "optimizer", conformance.cases_of)
    ]


@pytest.mark.parametrize("group, place", conformance.together(combinations("eager")))
def test_steps_follow_the_reference(group: conformance.Group, place: int) -> None:
    """Activations, rows and slots are the reference's after each of three steps."""
    conformance.check(group, place)


@pytest.mark.full
@pytest.mark.parametrize("group, place", conformance.together(combinations("function", "graph")))
def test_other_modes_follow_the_reference(group: conformance.Group, place: int) -> None:
    """In functions and graphs they are, too."""
    conformance.check(group, place)


def engine(
    driver: HostDriver,
    *,
    optimizer: Any = None,
    combiner: str = "mean",
    dims: tuple[int, ...] = (8, 8, 4),
    **settings: Any,
) -> TPUEmbedding:
    """Returns an engine of tables, the first of which has two features."""
    tables = tuple(
        TableSpec(
            f"table{i}",
            50 + i,
            dims[i],
            combiner,
            optimizer or Adagrad(0.1),
            lambda shape, **_: tf.random.stateless_normal(shape, [shape[0], 1]),
        )
        for i in range(TABLES)
    )
    features = tuple(FeatureSpec(f"ids{i}", f"table{i % TABLES}") for i in range(FEATURES))
    embedding = TPUEmbedding(EngineSpec(tables, features, **settings), driver=driver)
    return embedding


def batch_of(kind: str, seed: int) -> dict[str, Any]:
    """Returns ids of all features: of the first of them none, in others many samples have none."""
    chance = np.random.default_rng(seed)
    features: dict[str, Any] = {}
    for i in range(FEATURES):
        rows = 50 + i % TABLES
        if kind == "dense":
            features[f"ids{i}"] = tf.constant(chance.integers(rows, size=BATCH))
            continue
        lengths = chance.integers(0, 5, BATCH) * (i != 0)
        ids = tf.constant(chance.integers(rows, size=int(lengths.sum())), tf.int64)
        value = tf.RaggedTensor.from_row_lengths(ids, lengths)
        features[f"ids{i}"] = value if kind == "ragged" else value.to_sparse()
    return features


def train(embedding: TPUEmbedding, kind: str, steps: int = 3) -> list[Any]:
    """Returns the activations of the last step, and the tables after it."""

    @tf.function(autograph=False, reduce_retracing=True)
    def step(features: Any) -> Any:
        embedding.enqueue(features)
        activations = embedding.dequeue()
        gradients = {name: 0.1 * value + 0.01 for name, value in activations.items()}
        embedding.apply_gradients(gradients)
        return activations

    for seed in range(steps):
        activations = step(batch_of(kind, seed))
    return tf.nest.flatten([activations, [dict(t.variables) for t in embedding.tables.values()]])


KINDS_OF_INPUT = ("dense", "sparse", "ragged")
IN_TURN = set(zip(COMBINERS, KINDS_OF_INPUT, strict=True))


@pytest.mark.skipif(loading.on_gpu(), reason="a GPU sums in another order than a CPU")
@pytest.mark.parametrize(
    "combiner, kind",
    [
        pytest.param(*pair, marks=() if pair in IN_TURN else pytest.mark.full)
        for pair in itertools.product(COMBINERS, KINDS_OF_INPUT)
    ],
)
def test_tables_together_have_the_numbers_of_tables_alone(combiner: str, kind: str) -> None:
    """On a CPU the kernels of GPUs and those of CPUs train to the same numbers, to the bit."""
    results = []
    for driver in (HostDriver(native=False), gpu.GpuDriver()):
        embedding = engine(driver, combiner=combiner, optimizer=Adam(0.01))
        results.append(train(embedding, kind))
    for actual, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(kind, marks=pytest.mark.full) for kind in ("dense", "sparse")), "ragged"],
)
def test_runs_repeat(kind: str) -> None:
    """Two trainings on the same batches end with the same numbers, to the bit."""
    first, second = (train(engine(gpu.GpuDriver()), kind) for _ in range(2))
    for actual, expected in zip(first, second, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("feature, bad", [("ids0", -1), ("ids2", 52), ("ids3", 2**40)])
def test_an_id_outside_is_named(feature: str, bad: int) -> None:
    """The one check of all features names the feature and the id, and no row has changed."""
    embedding = engine(gpu.GpuDriver())
    embedding.build_for([(BATCH,)] * FEATURES)
    before = [t.variables["parameters"][0].numpy() for t in embedding.tables.values()]
    features = batch_of("ragged", 0)
    features[feature] = tf.RaggedTensor.from_row_lengths(
        tf.constant([bad], tf.int64), [1] + [0] * (BATCH - 1)
    )

    def step() -> None:
        embedding.enqueue(features)
        embedding.apply_gradients(embedding.dequeue())

    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s){feature}.*{bad}"):
        step()
    for table, rows in zip(embedding.tables.values(), before, strict=True):
        np.testing.assert_array_equal(table.variables["parameters"][0], rows)


SIGNATURES: dict[str, Any] = {
    "dense": lambda size, dtype: tf.TensorSpec([size], dtype),
    "sparse": lambda size, dtype: tf.SparseTensorSpec([size, None], dtype),
    "ragged": lambda size, dtype: tf.RaggedTensorSpec(
        [size, None], dtype, ragged_rank=1, row_splits_dtype=tf.int64
    ),
}
OPTIMIZERS_OF_KINDS = {
    kind: next(case for case in CASES.values() if case.kind == kind) for kind in KINDS
}


def graph_of_step(row: dict[str, Any]) -> Any:
    """Returns the graph of a step of training with the settings of a row.

    Its queues are where a GPU would be: TensorFlow puts them on the CPU of a machine without one.
    """
    case = OPTIMIZERS_OF_KINDS[row["optimizer"]]
    rate = (lambda: tf.constant(1.0)) if case.rate_is_step else 0.1
    optimizer = conformance.OPTIMIZERS[case.kind](rate, **case.settings)
    size = BATCH if row["size"] == "planned" else None
    embedding = engine(
        gpu.GpuDriver(),
        dims=(1,) * TABLES if optimizer.only_dim == 1 else (8, 8, 4),
        optimizer=optimizer,
        combiner=row["combiner"],
        out_of_range_ids=row["out of range"],
    )
    embedding.build_for([(size,)] * (FEATURES))
    weighted = row["weights"] and row["input"] != "dense"

    @tf.function(autograph=False)
    def step(ids: Any, weights: Any) -> Any:
        if row["packed"]:
            embedding.enqueue(embedding.pack(ids, weights if weighted else None))
        else:
            embedding.enqueue(ids, weights if weighted else None)
        activations = embedding.dequeue()
        embedding.apply_gradients({name: 0.5 * value for name, value in activations.items()})
        return activations

    specs = [
        {f"ids{i}": SIGNATURES[row["input"]](size, dtype) for i in range(FEATURES)}
        for dtype in (tf.int64, tf.float32)
    ]
    return step.get_concrete_function(*specs).graph


GRAPHS = {
    "input": tuple(SIGNATURES),
    "combiner": COMBINERS,
    "out of range": ("error", "drop"),
    "size": ("planned", "open"),
    "weights": (False, True),
    "packed": (False, True),
}


def rows_of_graphs() -> list[Any]:
    """Returns few rows that hold every pair of settings; thorough ones add the other optimizers."""
    rows = pairwise(GRAPHS)
    count = max(len(rows), len(KINDS))
    pairs = zip(range(count), itertools.cycle(KINDS), itertools.cycle(rows), strict=False)
    return [
        pytest.param(
            {"optimizer": optimizer, **row},
            id="-".join(map(str, [optimizer, *row.values()])),
            marks=() if place < len(rows) else pytest.mark.full,
        )
        for place, optimizer, row in pairs
    ]


@pytest.mark.parametrize("row", rows_of_graphs())
def test_a_step_stays_on_the_gpu(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each op has a kernel for GPUs, and between GPU and host go numbers of rows alone.

    The largest tensor that crosses has a number for each table, or for each feature; shapes are the
    graph's, in which no batch has a size that small.
    """
    monkeypatch.setattr(loading, "on_gpu", lambda: True)
    graph = graph_of_step(row)

    assert gpu.without_kernel(graph) == []
    for crossing in gpu.crossings(graph):
        shape: Object = crossing.shape
        assert shape is not None, crossing
        assert None not in shape, crossing
        assert int(np.prod(shape)) <= FEATURES, crossing


def test_batches_wait_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues between the functions of a step are made on the device of the tables."""
    devices = []
    make = tf.device
    monkeypatch.setattr(tf, "device", lambda name: devices.append(name) or make(name))
    embedding = engine(gpu.GpuDriver(), pipeline_execution_with_tensor_core=True)
    embedding.build_for([(BATCH,)] * (FEATURES))

    assert set(devices) == {"GPU:0"}
    assert len(devices) == 3  # of batches enqueued, batches looked up, and the update that waits


def test_crossings_are_found() -> None:
    """An op without a kernel, and a batch that goes through the host, do not pass unseen."""

    @tf.function
    def step(ids: Any) -> Any:
        least = tf.reduce_min(ids)
        return tf.slice(ids, [least], [1]), tf.unstack(ids, BATCH)

    graph = step.get_concrete_function(tf.TensorSpec([BATCH], tf.int64)).graph

    assert gpu.without_kernel(graph) == ["Min"]

    @tf.function
    def doubled(ids: Any) -> Any:
        return tf.unstack(2 * ids, BATCH)

    graph = doubled.get_concrete_function(tf.TensorSpec([BATCH], tf.int64)).graph
    assert gpu.Crossing("Mul", "Unpack", (BATCH,)) in set(gpu.crossings(graph))
