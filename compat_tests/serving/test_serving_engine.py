"""With an engine's spec, lookups for serving return the engine's numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support.serving_inputs import (
    COMBINERS,
    DIM,
    KINDS,
    ROWS,
    SPARSE,
    TABLE,
    WEIGHTS,
    Kind,
    a_ragged,
    config,
    spec,
)
from tf2_engine import EngineSpec, FeatureSpec, FrequencyEstimator, TableSpec
from tf2_engine.serving import cpu_embedding_lookup


def built(engine_spec: EngineSpec, hosts: int, features: Any, weights: Any) -> tuple[Any, Any]:
    """Returns an engine that holds TABLE, and the activations that it looks up."""
    engine = tf2_engine.TPUEmbedding(engine_spec, num_hosts=hosts, num_cores=hosts)
    batch = [{"x": features}] * hosts if hosts > 1 else {"x": features}
    weight = [{"x": weights}] * hosts if hosts > 1 else {"x": weights}
    for step in range(2):
        engine.enqueue(batch, None if weights is None else weight, training=False)
        if not step:
            engine.dequeue()
            write(engine, TABLE)
    looked_up = engine.dequeue()
    return engine, (looked_up[0] if hosts > 1 else looked_up)["x"].numpy()


def write(engine: Any, rows: Any) -> None:
    """Puts rows, by id, into the engine's only table."""
    table = engine.tables["users"]
    for number, shard in enumerate(table.variables["parameters"]):
        ids = (
            np.arange(ROWS)[number :: table.num_shards]
            if table.strategy == "mod"
            else np.array_split(np.arange(ROWS), table.num_shards)[number]
        )
        shard.assign(rows[ids])


AS_ENGINE = [
    "dense",
    "dense, a column",
    "sparse",
    "sparse, last sample empty",
    "sparse, nothing",
    "sparse, rank 3",
    "sparse, output_shape",
    "sparse, sequence",
    "sparse, sequence, a position twice",
    "sparse, sequence, rank 3",
    "ragged",
    "ragged, sequence",
    "ragged, sequence of length 1",
    "ragged, output_shape",
    "ragged, folded",
    "ragged, sequence by output_shape",
]


@pytest.mark.parametrize("name", AS_ENGINE)
def test_with_a_spec_the_numbers_are_the_engines(name: str) -> None:
    """With an EngineSpec a lookup equals the engine's to the bit, weights and shapes included."""
    kind = KINDS[name]
    for (label, values), combiner in itertools.product(WEIGHTS.items(), COMBINERS):
        if values is not None and not kind.weighted:
            continue
        engine_spec = spec(kind, combiner)
        features, weights = kind.features(), kind.weights(values)
        engine, wanted = built(engine_spec, 1, features, weights)

        weighted = None if weights is None else {"x": weights}
        activations = cpu_embedding_lookup(
            {"x": features}, weighted, engine.embedding_tables, engine_spec
        )["x"]

        np.testing.assert_array_equal(wanted, activations, err_msg=f"{name}, {combiner}, {label}")


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("hosts", [2, 3, 5])
def test_with_a_spec_shards_lie_as_it_says(strategy: str, hosts: int) -> None:
    kind = KINDS["sparse"]
    engine_spec = spec(kind, partition_strategy=strategy)
    engine, wanted = built(engine_spec, hosts, kind.features(), None)

    for tables in (engine.embedding_tables, engine.tables):
        activations = cpu_embedding_lookup({"x": kind.features()}, None, tables, engine_spec)["x"]
        np.testing.assert_array_equal(wanted, activations)


def test_with_a_spec_an_absent_id_is_absent() -> None:
    """With `out_of_range_ids="drop"` ids outside the table are absent; with "error" they fail."""
    kind = Kind(SPARSE, [4, -1, 7, 12, 0, 99])
    engine_spec = spec(kind, "mean", out_of_range_ids="drop")
    _, wanted = built(engine_spec, 1, kind.features(), None)
    tables = {"users": TABLE}

    activations = cpu_embedding_lookup({"x": kind.features()}, None, tables, engine_spec)["x"]
    single = cpu_embedding_lookup({"x": tf.constant([4, 12])}, None, tables, engine_spec)["x"]

    np.testing.assert_array_equal(wanted, activations)
    np.testing.assert_array_equal([TABLE[4], np.zeros(DIM)], single)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'x'.*'users'.*rows 0 to 11"):
        cpu_embedding_lookup({"x": kind.features()}, None, tables, spec(kind))


def test_a_batch_may_have_another_size_than_in_training() -> None:
    """A ragged feature with an `output_shape` for 4 samples is looked up for 2, and for 1."""
    kind = KINDS["ragged, sequence by output_shape"]
    two = a_ragged([0, 1, 4])([4, 7, 0, 1], tf.int64)

    activations = cpu_embedding_lookup({"x": two}, None, {"users": TABLE}, spec(kind))["x"]

    wanted = [[TABLE[4], np.zeros(DIM)], [TABLE[7], TABLE[0]]]
    np.testing.assert_array_equal(wanted, activations)
    traced = tf.function(
        lambda ids: cpu_embedding_lookup({"n": {"x": ids}}, None, {"users": TABLE}, config(kind)),
        input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)],
    )
    np.testing.assert_array_equal(wanted, traced(two)["n"]["x"])
    np.testing.assert_array_equal(wanted[1:], traced(two[1:])["n"]["x"])


def test_what_a_row_is_looked_up_as_is_up_to_the_optimizer() -> None:
    """A table of FrequencyEstimator is looked up as the engine looks it up."""
    optimizer = FrequencyEstimator(
        learning_rate=lambda: 1.0,
        tau=0.1,
        max_delta=8.0,
        outlier_threshold=2.0,
        weight_exponent=0.5,
        weighted=True,
    )
    engine_spec = EngineSpec(
        (TableSpec("users", ROWS, 1, combiner="sum", optimizer=optimizer),),
        (FeatureSpec("x", "users"),),
    )
    rows = np.arange(1, ROWS + 1, dtype=np.float32)[:, None]
    engine = tf2_engine.TPUEmbedding(engine_spec)
    engine.build_for([(2,)])
    engine.tables["users"].variables["parameters"][0].assign(rows)
    ids = tf.constant([3, 5])
    engine.enqueue({"x": ids}, training=False)

    activations = cpu_embedding_lookup({"x": ids}, None, {"users": rows}, engine_spec)["x"]

    np.testing.assert_array_equal(engine.dequeue()["x"], activations)
    # A quotient and a root on either side, 2^-24 each.
    np.testing.assert_allclose(np.sqrt(rows[[3, 5]] / 8), activations, rtol=4 * 2.0**-24)
