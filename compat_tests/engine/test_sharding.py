"""Rows on several hosts: the div and mod maps, and training that does not depend on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from compat_tests.cases import optimizers as cases
from compat_tests.conftest import Array, Engine, Runner, rows_of_shard
from compat_tests.references.placement import owner_core
from tf2_engine import SGD, Adagrad, Adam, EngineSpec, FeatureSpec, Optimizer, TableSpec, sharding
from tf2_engine.plan import make_plan
from tf2_engine.tables import PARAMETERS, create_tables

STRATEGIES = ("div", "mod")
LAYOUTS = [(1, 2), (2, 2), (2, 4), (5, 5), (3, 6)]
"""Hosts and cores."""


@pytest.mark.parametrize(
    "strategy, hosts",
    [
        ("div", [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10], [11, 12]]),
        ("mod", [[0, 5, 10], [1, 6, 11], [2, 7, 12], [3, 8], [4, 9]]),
    ],
)
def test_the_example_of_the_proto(strategy: str, hosts: list[list[int]]) -> None:
    """Thirteen ids on five hosts are where the proto's comment on sharding_strategy has them."""
    assert sharding.shard_rows(13, 5) == tuple(len(ids) for ids in hosts)
    for shard, ids in enumerate(hosts):
        for row, id_ in enumerate(ids):
            assert sharding.shard_of(id_, 13, 5, strategy) == shard
            assert sharding.local_row(id_, 13, 5, strategy) == row
            assert sharding.global_id(shard, row, 13, 5, strategy) == id_


@settings(derandomize=True, max_examples=60, deadline=None)
@given(rows=st.integers(1, 60), num_hosts=st.integers(1, 9), strategy=st.sampled_from(STRATEGIES))
def test_the_maps_and_their_inverse(rows: int, num_hosts: int, strategy: str) -> None:
    """For ints and arrays every id has one place, and the place gives the id back.

    The host is the one that the reference names; hosts are filled without gaps.
    """
    ids = np.arange(rows)
    shard = sharding.shard_of(ids, rows, num_hosts, strategy)
    local = sharding.local_row(ids, rows, num_hosts, strategy)
    sizes = sharding.shard_rows(rows, num_hosts)

    assert shard.tolist() == [owner_core(id_, rows, num_hosts, 1, strategy) for id_ in range(rows)]
    assert shard.tolist() == [sharding.shard_of(i, rows, num_hosts, strategy) for i in range(rows)]
    assert ids.tolist() == sharding.global_id(shard, local, rows, num_hosts, strategy).tolist()
    assert sorted(zip(shard, local, strict=True)) == [
        (host, row) for host, size in enumerate(sizes) for row in range(size)
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_hosts, num_cores", LAYOUTS)
def test_the_owner_of_a_row(num_hosts: int, num_cores: int, strategy: str) -> None:
    engine = engine_with([SGD()], num_hosts, num_cores, strategy)
    owner = engine.embedding.tables["table0"].core_of(tf.range(13, dtype=tf.int64), num_cores)

    cores_per_host = num_cores // num_hosts
    expected = [owner_core(row, 13, num_cores, cores_per_host, strategy) for row in range(13)]
    assert owner.numpy().tolist() == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_host_holds_its_rows(strategy: str) -> None:
    """Parameters and slots of thirteen rows on five hosts are variables of 3, 3, 3, 2, 2 rows."""
    table = engine_with([Adam()], 5, 5, strategy).embedding.tables["table0"]

    for kind in ("parameters", "momenta", "velocities"):
        assert [shard.shape[0] for shard in table.variables[kind]] == [3, 3, 3, 2, 2], kind


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", cases.MODES)
def test_placement_is_no_arithmetic(mode: str, strategy: str) -> None:
    """With accumulation the rows after three steps on two hosts are those on one, to the bit."""
    results = [after_training(mode, num_hosts, strategy) for num_hosts in (1, 2)]

    np.testing.assert_array_equal(*results)


def after_training(mode: str, num_hosts: int, strategy: str) -> Array:
    """Returns the rows of an Adagrad table after three steps on two cores."""
    engine = engine_with([Adagrad(0.5)], num_hosts, 2, strategy, mode)
    engine.write("table0", first_weights(0))
    for ids, gradients in batches(2):
        engine.train(
            [{"ids0": tf.constant(row)} for row in ids],
            None,
            [{"ids0": tf.constant(rows)} for rows in gradients],
        )
    return engine.read()["table0"]["parameters"]


def engine_with(
    optimizers: list[Optimizer], num_hosts: int, num_cores: int, strategy: str, mode: str = "eager"
) -> Engine:
    """Returns a built engine with a table of thirteen rows, and a feature, per optimizer."""
    spec = EngineSpec(
        tuple(
            TableSpec(f"table{place}", 13, 2, "sum", optimizer)
            for place, optimizer in enumerate(optimizers)
        ),
        tuple(FeatureSpec(f"ids{place}", f"table{place}") for place in range(len(optimizers))),
        partition_strategy=strategy,
    )
    engine = Engine(Runner(mode), spec, num_hosts=num_hosts, num_cores=num_cores)
    engine.build_for([(4,)] * len(optimizers))
    return engine


def first_weights(seed: int) -> Array:
    """Returns [13, 2] float32."""
    return np.random.default_rng(seed).uniform(-1, 1, (13, 2)).astype(np.float32)


def batches(num_cores: int) -> list[tuple[Any, Array]]:
    """Returns three steps: ids [cores, 4], in which rows repeat, and gradients [cores, 4, 2]."""
    chance = np.random.default_rng(num_cores)
    return [
        (
            chance.integers(0, 13, (num_cores, 4)),
            chance.uniform(0.25, 1.0, (num_cores, 4, 2)).astype(np.float32),
        )
        for _ in range(3)
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("update", ["scatter", "spread"])
def test_rows_are_placed_once_for_all_hosts(
    update: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eager update of rows on five hosts asks once which of them holds which row."""
    of_table = TableSpec("videos", 13, 2, "sum", SGD(0.5), tf.zeros_initializer())
    spec = EngineSpec((of_table,), (FeatureSpec("watched", "videos"),), partition_strategy=strategy)
    table = create_tables(make_plan(spec, [(4,)], num_hosts=5, num_cores=5))["videos"]
    ids = tf.constant([12, 0, 3, 7], tf.int64)
    rows = tf.constant([[12.0, 1.0], [5.0, 1.0], [3.0, 1.0], [7.0, 1.0]])
    placed = []
    stock = sharding.shard_of
    monkeypatch.setattr(
        sharding, "shard_of", lambda *arguments: placed.append(1) or stock(*arguments)
    )

    if update == "scatter":
        table.scatter({PARAMETERS: rows}, ids)
        shards = [shard.numpy() for shard in table.variables[PARAMETERS]]
    else:
        shards = [dense.numpy() for dense in table.spread(ids, rows)]

    assert len(placed) == 1
    expected = np.zeros([13, 2], np.float32)
    expected[ids.numpy()] = rows.numpy()
    for shard, held in enumerate(shards):
        np.testing.assert_array_equal(held, expected[rows_of_shard(13, 5, shard, strategy)])
