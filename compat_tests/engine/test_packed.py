"""Packed batches give the same results as the original ones, and are refused in the same cases."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import COMBINERS, MODES
from compat_tests.conftest import Runner
from compat_tests.engine.test_engine_bad_batches import BAD_BATCHES
from compat_tests.support import fake_tpu
from compat_tests.support.bad_batches import AT_RUN_TIME, SPEC, Bad, features, unharmed
from compat_tests.support.paths import ROOT
from tf2_engine import (
    Adagrad,
    EngineSpec,
    FeatureSpec,
    PackedBatch,
    TableSpec,
    TPUEmbedding,
    errors,
    soft_tpu,
)

ROWS, DIM, SAMPLES = 12, 3, 4
FIRST = np.random.default_rng(5).uniform(-1, 1, (ROWS, DIM)).astype(np.float32)


first_rows = tf.constant_initializer(FIRST)


def a_sparse(shape: Any, seed: int, dtype: Any = tf.int64) -> tf.SparseTensor:
    random = np.random.default_rng(seed)
    where = np.argwhere(random.uniform(size=shape) < 0.5)
    return tf.SparseTensor(where, tf.constant(random.integers(0, ROWS, len(where)), dtype), shape)


def a_ragged(rows: int, seed: int, dtype: Any = tf.int64) -> tf.RaggedTensor:
    """Returns 0 to 4 ids a row, with row splits of the same type."""
    random = np.random.default_rng(seed)
    splits = np.cumsum([0, *random.integers(0, 5, rows)])
    ids = tf.constant(random.integers(0, ROWS, splits[-1]), dtype)
    return tf.RaggedTensor.from_row_splits(ids, tf.constant(splits, dtype))


def a_dense(shape: Any, seed: int, dtype: Any = tf.int64) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).integers(0, ROWS, shape), dtype)


KINDS: dict[str, tuple[Callable[[int, int], Any], dict[str, Any]]] = {
    "dense": (lambda rows, seed: a_dense([rows], seed), {}),
    "dense_int32": (lambda rows, seed: a_dense([rows], seed, tf.int32), {}),
    "dense_column": (lambda rows, seed: a_dense([rows, 1], seed), {}),
    "dense_cube": (lambda rows, seed: a_dense([rows, 2, 1], seed), {}),
    "sparse": (lambda rows, seed: a_sparse([rows, 5], seed), {}),
    "sparse_int32": (lambda rows, seed: a_sparse([rows, 3], seed, tf.int32), {}),
    "sparse_cube": (lambda rows, seed: a_sparse([rows, 2, 3], seed), {}),
    "sparse_sequence": (
        lambda rows, seed: a_sparse([rows, 3], seed),
        {"max_sequence_length": 2},
    ),
    "ragged": (a_ragged, {}),
    "ragged_int32": (lambda rows, seed: a_ragged(rows, seed, tf.int32), {}),
    "ragged_sequence": (a_ragged, {"max_sequence_length": 2}),
}
"""By kind of ids: a function of the number of samples and a seed, and the feature's settings."""


def spec_of(combiner: str) -> EngineSpec:
    """Returns a spec with a feature of every kind, over two tables."""
    return EngineSpec(
        tuple(
            TableSpec(name, ROWS, DIM, combiner, Adagrad(0.5), first_rows) for name in ("t", "u")
        ),
        tuple(
            FeatureSpec(name, "tu"[number % 2], **settings)
            for number, (name, (_, settings)) in enumerate(KINDS.items())
        ),
    )


def a_batch(seed: int, weighted: bool, rows: int = SAMPLES) -> tuple[Any, Any]:
    """Returns ids of every kind, and weights, int32 among them, or None."""
    ids = {
        name: make(rows, 100 * seed + number)
        for number, (name, (make, _)) in enumerate(KINDS.items())
    }
    return ids, {name: weight_of(name, value) for name, value in ids.items()} if weighted else None


def weight_of(name: str, ids: Any) -> Any:
    """Returns weights for sparse and ragged ids, one of them of whole numbers; no sequence's."""
    if isinstance(ids, tf.Tensor) or "sequence" in name:
        return None
    size = ids.values.shape[0]
    random = np.random.default_rng(size)
    if "int32" in name:
        return ids.with_values(tf.constant(random.integers(1, 4, size), tf.int32))
    return ids.with_values(tf.constant(random.uniform(0.1, 2, size), tf.float32))


def trained(mode: str, combiner: str, arguments: Callable[[TPUEmbedding], Any]) -> list[Any]:
    """Returns the activations of a step and the tables after it; `arguments` are the batch."""
    runner = Runner(mode)
    with runner.scope():
        engine = TPUEmbedding(spec_of(combiner))

    def step() -> Any:
        engine.enqueue(*arguments(engine))
        activations = engine.dequeue()
        sent = {name: 0.1 * value for name, value in activations.items()}
        return activations, engine.apply_gradients(sent)

    activations, _ = runner.wrap(step)()
    tables = {name: table.variables for name, table in engine.tables.items()}
    return [activations, runner.read(tables)]


QUICK = {("sum", "eager", True), ("mean", "function", True)}


@pytest.mark.parametrize(
    "combiner, mode, weighted",
    [
        pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.full])
        for case in itertools.product(COMBINERS, MODES, (True, False))
    ],
)
def test_a_packed_batch_gives_the_same_bits(combiner: str, mode: str, weighted: bool) -> None:
    """Activations, parameters and slots are those of the batch that was packed, of every kind."""

    def packed(engine: TPUEmbedding) -> Any:
        batch = engine.pack(*a_batch(0, weighted))
        assert tuple(batch.weights.shape) != (0,) or not weighted
        return (batch,)

    expected = trained(mode, combiner, lambda _: a_batch(0, weighted))
    actual = trained(mode, combiner, packed)

    flat = zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True)
    assert not all(np.array_equal(expected[-1][name]["parameters"][0], FIRST) for name in "tu")
    for number, (one, other) in enumerate(flat):
        np.testing.assert_array_equal(one, other, str(number))


def open_spec(value: Any) -> Any:
    """Returns the spec of a tensor of which no size is known but those of dense rows."""
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec([None] * value.shape.rank, value.dtype)
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec([None, None], value.dtype, 1, value.row_splits.dtype)
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)


@pytest.fixture(scope="module")
def open_batches() -> tuple[TPUEmbedding, list[Any], list[Any]]:
    """An engine; batches of 4 and of 2 samples; and the same from a pipeline that packs them."""
    engine = TPUEmbedding(spec_of("mean"))
    batches = [a_batch(0, True, 4)[0], a_batch(1, True, 2)[0]]
    # "sparse_cube" has a dimension between samples and ids, which an engine must know.
    specs = {name: open_spec(value) for name, value in batches[0].items()}
    specs["sparse_cube"] = tf.SparseTensorSpec([None, 2, None], tf.int64)
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)
    return engine, batches, list(dataset.map(engine.pack).prefetch(1))


@pytest.mark.full
def test_sizes_that_only_the_run_can_tell(open_batches: tuple[Any, Any, Any]) -> None:
    """Packed in a pipeline, batches of two sizes have one class; one trace looks both up."""
    engine, batches, packed = open_batches
    traces = []

    @tf.function(autograph=False, reduce_retracing=True)
    def look_up(batch: Any) -> Any:
        traces.append(type(batch).__name__)
        return engine.differentiable_lookup(batch, training=False)[0]

    assert type(packed[0]) is type(packed[1])
    for batch, one in zip(batches, packed, strict=True):
        expected = engine.differentiable_lookup(batch, training=False)[0]
        tf.nest.map_structure(np.testing.assert_array_equal, look_up(one), expected)
        tf.nest.map_structure(np.testing.assert_array_equal, engine.embedding_lookup(one), expected)
    assert traces.count(type(packed[0]).__name__) == len(traces) <= 3  # no size is fixed


def test_static_sizes_stay() -> None:
    """A batch whose size is known before it runs keeps it: so do activations in a function."""
    engine = TPUEmbedding(spec_of("sum"))
    ids, _ = a_batch(0, False)
    dataset = tf.data.Dataset.from_tensors(ids).map(engine.pack)

    tf.function(engine.enqueue, autograph=False).get_concrete_function(dataset.element_spec)

    assert {feature.output_shape[0] for feature in engine.plan.features} == {SAMPLES}


@pytest.mark.parametrize("bad", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_bad_batches_are_refused(bad: Bad) -> None:
    """Batches that `enqueue` refuses are refused in the same words, by `pack` where it can."""
    refused_by_pack = not bad.only_when_built and bad.error is not AT_RUN_TIME
    with unharmed("eager") as fixture:
        engine = fixture.embedding
        batch = bad.features(), None if bad.weights is None else bad.weights()
        act = engine.pack if refused_by_pack else lambda *parts: engine.enqueue(engine.pack(*parts))
        with pytest.raises(bad.error, match=f"(?s){bad.message}"):
            act(*batch)


def test_batches_that_were_packed_elsewhere_are_refused() -> None:
    """Of other features, with weights beside it, batched or split: each is refused by name."""
    other = TPUEmbedding(
        EngineSpec((TableSpec("t", 8, 2, "sum", Adagrad(0.1)),), (FeatureSpec("city", "t"),))
    )
    with unharmed("eager") as fixture:
        engine = fixture.embedding
        whole = engine.pack(features())
        with pytest.raises(errors.InvalidInput, match=r"Missing features: \['country'.*\['city'\]"):
            engine.enqueue(other.pack({"city": tf.constant([1, 2])}))
        with pytest.raises(errors.InvalidInput, match="`weights` are passed together with a"):
            engine.enqueue(whole, {"watched": None})
        for taken_apart in (
            next(iter(tf.data.Dataset.from_tensors(whole).batch(1))),
            tf.nest.map_structure(lambda tensor: tensor[: len(tensor) // 2], whole),
        ):
            with pytest.raises(errors.InvalidInput, match=r"batched or split.*sizes.*then pack"):
                engine.enqueue(taken_apart)


def test_several_cores_take_a_list_of_packed_batches() -> None:
    """One packed batch, itself a tuple of four tensors, is none for each of four cores."""
    engine, expected = (TPUEmbedding(SPEC, num_cores=4) for _ in range(2))
    whole = engine.pack(features())
    assert isinstance(whole, PackedBatch)
    assert len(whole) == 4

    with pytest.raises(errors.InvalidInput, match=r"`features`.*each of the 4 cores"):
        engine.enqueue(whole)
    engine.enqueue([whole] * 4)
    expected.enqueue([features()] * 4)

    tf.nest.map_structure(np.testing.assert_array_equal, engine.dequeue(), expected.dequeue())


@pytest.mark.full
def test_replicas_take_packed_batches(tmp_path: Any) -> None:
    """Under MirroredStrategy, engine and Keras layer train on packed batches as on others."""
    path = str(tmp_path / "results.npz")
    program = [sys.executable, "-m", "compat_tests.programs.packed_loops", path]
    subprocess.run(program, check=True, cwd=str(ROOT))

    with np.load(path) as stored:
        results = dict(stored)
    for loop in ("outside", "inside", "fit"):
        assert np.any(results[f"{loop}/nests"] != results["start"]), loop
        np.testing.assert_array_equal(results[f"{loop}/packed"], results[f"{loop}/nests"], loop)
    assert np.any(results["rest/nests"])
    np.testing.assert_array_equal(results["rest/packed"], results["rest/nests"])
    assert "distribute_datasets_from_function" in str(results["split"])


@pytest.mark.full
def test_a_tpu_takes_packed_batches_from_the_host() -> None:
    """Enqueued outside of `strategy.run` they have the activations of the nests, to the bit."""
    strategy = soft_tpu.SoftTPUStrategy(2)
    table = TableSpec("table", ROWS, DIM, "sum", Adagrad(0.1), first_rows)
    spec = EngineSpec([table], [FeatureSpec("sparse", "table"), FeatureSpec("dense", "table")])
    batches = [
        {"sparse": a_sparse([SAMPLES, 3], seed), "dense": a_dense([SAMPLES], seed)}
        for seed in (1, 2)
    ]
    with strategy.scope():
        engine = TPUEmbedding(spec)

    @tf.function
    def looked_up() -> Any:
        def core() -> Any:
            activations = engine.dequeue()
            # Gradients of zero end the step, and leave the rows as they are.
            engine.apply_gradients(tf.nest.map_structure(tf.zeros_like, activations))
            return activations

        return strategy.run(core)

    @functools.partial(tf.function, autograph=False)
    def enqueue(packs: bool) -> None:
        of_cores = [engine.pack(each) if packs else each for each in batches]
        engine.enqueue(fake_tpu.distribute(strategy, of_cores))

    results = []
    try:
        for packs in (False, True):
            enqueue(packs)
            results.append(strategy.experimental_local_results(looked_up()))
    finally:
        tf.tpu.experimental.shutdown_tpu_system(strategy.cluster_resolver)

    nests, packed = results
    assert np.any(nests[0]["sparse"] != nests[1]["sparse"])
    tf.nest.map_structure(np.testing.assert_array_equal, packed, nests)
