"""Batches that lie on a GPU, and tables in small types, have the numbers of batches on the host.

These tests run on a machine with a GPU. Elsewhere, `test_gpu_ops.py` runs them in a process in
which a CPU runs the kernels of GPUs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import COMBINERS
from tf2_engine import (
    Adagrad,
    EngineSpec,
    FeatureSpec,
    TableSpec,
    TPUEmbedding,
    serving_table,
    small_types,
)
from tf2_engine.backends import HostDriver
from tf2_engine.backends.host import driver, native_kernels
from tf2_engine.native import loading

pytestmark = pytest.mark.skipif(
    driver.NativeKernels is not native_kernels.NativeKernelsOnGpu and not loading.on_gpu(),
    reason="there is no GPU, and no CPU in its place",
)

ROWS, SAMPLES, LENGTH, CORES = 50, 9, 3, 2
DIMS = (8, 5)
"""Widths of the tables: rows of the first are read four numbers at a time."""
FEATURES = {
    "dense": {},
    "sparse": {},
    "unsorted": {},
    "weighted sparse": {},
    "ragged": {},
    "weighted ragged": {},
    "sparse sequence": {"max_sequence_length": LENGTH},
    "ragged sequence": {"output_shape": (SAMPLES, LENGTH)},
}
"""The settings of each kind of feature."""


@contextlib.contextmanager
def placed(on_gpu: bool) -> Iterator[None]:
    """Within the context, batches are on the GPU, or on the host."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        if loading.on_gpu():
            stack.enter_context(tf.device("GPU:0" if on_gpu else "CPU:0"))
        else:
            patch.setattr(native_kernels, "is_on_gpu", lambda tensor: on_gpu)
        yield


def moved(batch: Any) -> Any:
    """Returns a copy of a batch, on the device in scope."""
    return tf.nest.map_structure(
        lambda each: each if each is None else tf.identity(each), batch, expand_composites=True
    )


def engine(combiner: str = "sum", **settings: Any) -> TPUEmbedding:
    """Returns an engine with a table of each width for each kind of feature."""
    tables = [
        TableSpec(
            f"{kind} {dim}",
            ROWS,
            dim,
            combiner,
            Adagrad(0.1),
            lambda shape, **_: np.sin(np.arange(np.prod(shape)).reshape(shape)).astype(np.float32),
        )
        for kind, dim in itertools.product(FEATURES, DIMS)
    ]
    features = [
        FeatureSpec(f"{kind} {dim}", f"{kind} {dim}", **FEATURES[kind])
        for kind, dim in itertools.product(FEATURES, DIMS)
    ]
    out_of_range = settings.pop("out_of_range_ids", "error")
    spec = EngineSpec(tuple(tables), tuple(features), out_of_range_ids=out_of_range)
    embedding = TPUEmbedding(spec, driver=HostDriver(), **settings)
    shapes = [(SAMPLES, LENGTH) if "sequence" in name else (SAMPLES,) for name in names()]
    embedding.build_for(shapes)
    return embedding


def names() -> list[str]:
    return [f"{kind} {dim}" for kind, dim in itertools.product(FEATURES, DIMS)]


def batch_of(seed: int, beyond: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns ids, and weights; some samples have none. Ids are out of range by up to `beyond`."""
    chance = np.random.default_rng(seed)
    ids: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for name in names():
        lengths = chance.integers(0, 6, SAMPLES) * chance.integers(0, 2, SAMPLES)
        count = SAMPLES if "dense" in name else int(lengths.sum())
        values = chance.integers(-beyond, ROWS + beyond, count)
        if "dense" in name:
            ids[name] = tf.constant(values)
            continue
        ragged = tf.RaggedTensor.from_row_lengths(values, lengths)
        of_ids = ragged.with_values(chance.normal(size=count).astype(np.float32))
        pair = [ragged, of_ids]
        if "ragged" not in name:
            pair = [each.to_sparse() for each in pair]
        if "unsorted" in name:
            order = chance.permutation(count)
            pair = [
                tf.SparseTensor(
                    tf.gather(each.indices, order), tf.gather(each.values, order), each.dense_shape
                )
                for each in pair
            ]
        ids[name] = pair[0]
        weights[name] = pair[1] if "weighted" in name else None
    return ids, {name: weights.get(name) for name in names()}


def trained(on_gpu: bool, steps: int = 3, cores: int = 1, **settings: Any) -> list[Any]:
    """Returns the activations of each step, and the tables after the last."""
    beyond = 9 if settings.get("out_of_range_ids") == "drop" else 0
    embedding = engine(num_cores=cores, num_hosts=cores, **settings)

    @tf.function(autograph=False, reduce_retracing=True)
    def step(batches: Any) -> Any:
        with placed(on_gpu):
            batches = moved(batches)
        ids, weights = ([batch[i] for batch in batches] for i in range(2))
        one = cores == 1
        activations, update = embedding.differentiable_lookup(
            ids[0] if one else ids, weights[0] if one else weights
        )
        update(tf.nest.map_structure(lambda value: 0.1 * value + 0.01, activations))
        return activations

    flat: list[Any] = []
    with placed(on_gpu):
        for seed in range(steps):
            batches = [batch_of(10 * core + seed, beyond) for core in range(cores)]
            flat += tf.nest.flatten(step(batches))
        graph = step.get_concrete_function(batches).graph
    used = {op.type for op in graph.get_operations()}
    assert ("Tf2EngineRawLookup" in used) == on_gpu
    assert ("Tf2EngineRawUpdate" in used) == on_gpu
    tables = [dict(table.variables) for table in embedding.tables.values()]
    return [value.numpy() for value in [*flat, *tf.nest.flatten(tables)]]


SETTINGS: dict[str, dict[str, Any]] = {
    "sum": {"combiner": "sum"},
    "mean, drop": {"combiner": "mean", "out_of_range_ids": "drop"},
    "sqrtn, cores": {"combiner": "sqrtn", "cores": CORES},
}
MORE_SETTINGS: dict[str, dict[str, Any]] = {
    **{combiner: {"combiner": combiner} for combiner in COMBINERS},
    **{
        f"{combiner}, drop": {"combiner": combiner, "out_of_range_ids": "drop"}
        for combiner in COMBINERS
    },
}


@pytest.mark.parametrize(
    "settings",
    [
        *(pytest.param(value, id=name) for name, value in SETTINGS.items()),
        *(
            pytest.param(value, id=name, marks=pytest.mark.full)
            for name, value in MORE_SETTINGS.items()
            if name not in SETTINGS
        ),
    ],
)
def test_training_has_the_bits_of_batches_on_the_host(settings: dict[str, Any]) -> None:
    """Of every kind of feature, sorted or not, with ids to drop, and with several cores."""
    for actual, expected in zip(trained(True, **settings), trained(False, **settings), strict=True):
        np.testing.assert_array_equal(actual, expected)


def bad_batches() -> dict[str, Any]:
    """Returns batches that are invalid in one feature each."""
    ids, weights = batch_of(0)
    name = {kind: f"{kind} {DIMS[-1]}" for kind in FEATURES}
    dense = ids[name["dense"]].numpy()
    sparse, ragged = ids[name["sparse"]], ids[name["ragged"]]
    splits = ragged.row_splits.numpy()
    index = sparse.indices.numpy()
    far, falling, short = index.copy(), splits.copy(), splits.copy()
    far[1, 0] = SAMPLES
    falling[2] = falling[1] - 1
    short[-1] -= 1
    changed = {
        "dense id": {name["dense"]: tf.constant([*dense[:-1], ROWS])},
        "far id": {name["dense"]: tf.constant([2**40, *dense[1:-1], -1])},
        "sparse id": {
            name["sparse"]: sparse.with_values(
                tf.concat([tf.constant([-3], tf.int64), sparse.values[1:]], 0)
            )
        },
        "coordinate": {
            name["sparse"]: tf.SparseTensor(far, sparse.values, sparse.dense_shape),
            name["dense"]: tf.constant([ROWS, *dense[1:]]),
        },
        "row split": {
            name["ragged"]: tf.RaggedTensor.from_row_splits(ragged.values, falling, validate=False)
        },
        "last split": {
            name["ragged"]: tf.RaggedTensor.from_row_splits(ragged.values, short, validate=False)
        },
    }
    return {kind: ({**ids, **some}, weights) for kind, some in changed.items()}


def step_and_read(embedding: TPUEmbedding, ids: Any, weights: Any) -> None:
    """Trains a step, and reads the tables."""
    activations, update = embedding.differentiable_lookup(ids, weights)
    update(tf.nest.map_structure(tf.ones_like, activations))
    embedding.retrieve()


def message(error: Exception) -> str:
    """Returns the part of an error that the ops write."""
    lines = [line for line in str(error).splitlines() if "Feature '" in line]
    return lines[0][lines[0].index("Feature '") :].split(" [Op:")[0]


@pytest.mark.parametrize(
    "kind", ["dense id", "far id", "sparse id", "coordinate", "row split", "last split"]
)
def test_invalid_batches_are_reported(kind: str) -> None:
    """The message is that of a batch on the host; no row has changed; then training goes on."""
    messages = []
    for on_gpu in (False, True):
        embedding = engine()

        before = [table.variables["parameters"][0].numpy() for table in embedding.tables.values()]
        with placed(on_gpu):
            bad = moved(bad_batches()[kind])
            with pytest.raises(tf.errors.InvalidArgumentError) as raised:
                step_and_read(embedding, *bad)
        messages.append(message(raised.value))
        for table, rows in zip(embedding.tables.values(), before, strict=True):
            np.testing.assert_array_equal(table.variables["parameters"][0], rows)
        with placed(on_gpu):
            good = moved(batch_of(0))
            step_and_read(embedding, *good)
    assert messages[0] == messages[1]


def test_the_next_lookup_reports_an_invalid_batch() -> None:
    """So does reading the tables. A lookup that nobody updates for has activations of zero."""
    embedding = engine(training=False)
    with placed(True):
        good, bad = (moved(batch) for batch in (batch_of(0), bad_batches()["dense id"]))
        for call in (lambda: embedding.differentiable_lookup(*good), embedding.retrieve):
            activations, _ = embedding.differentiable_lookup(*bad)
            for value in tf.nest.flatten(activations):
                np.testing.assert_array_equal(value, np.zeros_like(value))
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"The id: {ROWS}"):
                call()
        embedding.differentiable_lookup(*good)
        embedding.retrieve()


@pytest.mark.parametrize("on_gpu", [False, True], ids=["host", "GPU"])
@pytest.mark.parametrize("table_dtype", ["float16", "bfloat16"])
def test_lookups_in_small_tables_are_those_of_the_rows_that_are_held(
    table_dtype: str, on_gpu: bool
) -> None:
    """The fused op gives what it gives for float32 rows of the same values, to the bit."""
    special = np.float32([0.0, -0.0, 1e-7, -3e-6, 6e-5, 60000.0, np.inf, np.nan])
    rows = {}
    for name, table in engine().tables.items():
        values = table.variables["parameters"][0].numpy()
        values[-1, :] = special[: values.shape[1]]
        rows[name] = values

    def activations(of_dtype: str) -> Any:
        stored = {name: serving_table(values, table_dtype) for name, values in rows.items()}
        if of_dtype == "float32":
            stored = {
                name: tf.Variable(small_types.decode(value)) for name, value in stored.items()
            }
        embedding = engine(
            "mean", training=False, variable_factory=lambda table, *_: [stored[table.name]]
        )

        @tf.function(autograph=False)
        def look_up(batch: Any) -> Any:
            with placed(on_gpu):
                batch = moved(batch)
            return embedding.differentiable_lookup(*batch, training=False)[0]

        with placed(on_gpu):
            found = look_up(batch_of(3))
            graph = look_up.get_concrete_function(batch_of(3)).graph
        used = {op.type for op in graph.get_operations()}
        assert used & {"Tf2EngineLookup", "Tf2EngineRawLookup"}
        return found

    actual, expected = activations(table_dtype), activations("float32")
    for name, activation in actual.items():
        assert activation.dtype == tf.float32
        np.testing.assert_array_equal(activation, expected[name], err_msg=name)
