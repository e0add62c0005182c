"""Rows on several hosts: the div and mod maps, and training that does not depend on them.

There may be fewer rows than hosts.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from compat_tests.cases import optimizers as cases
from compat_tests.conftest import Array, Engine, Runner, rows_of_shard
from compat_tests.references.inputs import dense
from compat_tests.references.placement import owner_core
from compat_tests.references.training import Lookup, assert_step
from tf2_engine import OPTIMIZERS, SGD, Adagrad, EngineSpec, FeatureSpec, TableSpec, sharding
from tf2_engine.plan import make_plan
from tf2_engine.tables import PARAMETERS, create_tables

STRATEGIES = ("div", "mod")


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
@pytest.mark.parametrize("mode", cases.MODES)
def test_placement_is_no_arithmetic(mode: str, strategy: str) -> None:
    """With accumulation three steps on two hosts give the bits of one host, also in lookups."""
    on_one, on_two = (trained(mode, num_hosts, strategy) for num_hosts in (1, 2))

    for expected, actual in zip(on_one, on_two, strict=True):
        np.testing.assert_array_equal(actual, expected)


def trained(mode: str, num_hosts: int, strategy: str) -> list[Array]:
    """Returns the activations of three steps on two cores, and the rows of the table after them."""
    spec = EngineSpec(
        (TableSpec("table", 13, 2, "sum", Adagrad(0.5)),),
        (FeatureSpec("ids", "table"),),
        partition_strategy=strategy,
    )
    engine = Engine(Runner(mode), spec, num_hosts=num_hosts, num_cores=2)
    engine.build_for([(4,)])
    chance = np.random.default_rng(2)
    engine.write("table", chance.uniform(-1, 1, (13, 2)).astype(np.float32))
    results = []
    for _ in range(3):
        ids = [{"ids": tf.constant(chance.integers(0, 13, 4))} for _ in range(2)]
        gradients = [
            {"ids": tf.constant(chance.uniform(0.25, 1.0, (4, 2)), tf.float32)} for _ in range(2)
        ]
        results += [of_core["ids"] for of_core in engine.train(ids, None, gradients)]
    return [*results, engine.read()["table"]["parameters"]]


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


# Tables with fewer rows than there are hosts.

DIM, BATCH, STEPS, RATE = 2, 3, 3, 0.5
VOCABULARIES = (1, 2)
HOSTS = (3, 5)
SMALL = [
    pytest.param(
        mode, *place, id="-".join(map(str, (mode, *place))), marks=() if quick else pytest.mark.full
    )
    for turn, place in enumerate(itertools.product(VOCABULARIES, HOSTS, STRATEGIES))
    for number, mode in enumerate(cases.MODES)
    for quick in [mode == "eager" or turn == number]
]

KINDS: tuple[tuple[cases.OptimizerCase, dict[str, Any]], ...] = (
    (cases.CASES["Adagrad"], {}),
    (cases.CASES["Adagrad"], {"use_gradient_accumulation": False}),
    (cases.CASES["Adam, every row"], {}),
)
"""Kinds of updates: row by row, core by core, and of all rows."""


def engine_with(
    rows: int, hosts: int, strategy: str, mode: str = "eager", out_of_range: str = "error"
) -> Engine:
    """Returns a built engine with a core per host and a table per kind of update."""
    spec = EngineSpec(
        tuple(
            TableSpec(
                f"table{place}",
                rows,
                DIM,
                "sum",
                OPTIMIZERS[case.kind](learning_rate=RATE, **case.settings, **common),
            )
            for place, (case, common) in enumerate(KINDS)
        ),
        tuple(FeatureSpec(f"ids{place}", f"table{place}") for place in range(len(KINDS))),
        partition_strategy=strategy,
        out_of_range_ids=out_of_range,
    )
    engine = Engine(Runner(mode), spec, num_hosts=hosts, num_cores=hosts)
    engine.build_for([(BATCH,)] * len(KINDS))
    return engine


def of_tables(*values: Any) -> list[dict[str, tf.Tensor]]:
    """Returns values of cores as features of all tables, which have the same."""
    return [{f"ids{place}": tf.constant(value) for place in range(len(KINDS))} for value in values]


def first_weights(rows: int, hosts: int) -> Array:
    """Creates random weights, [rows, dim], with at least one row for each host."""
    return np.random.default_rng(rows).uniform(-1, 1, (max(rows, hosts), DIM)).astype(np.float32)


@pytest.mark.parametrize("mode, rows, hosts, strategy", SMALL)
def test_steps_with_few_rows_follow_the_reference(
    mode: str, rows: int, hosts: int, strategy: str
) -> None:
    """Activations, rows and slots are the reference's over three steps of every kind of update."""
    engine = engine_with(rows, hosts, strategy, mode)
    weights = first_weights(rows, hosts)
    expected = []
    for place, (case, common) in enumerate(KINDS):
        engine.write(f"table{place}", weights)
        expected.append(case.reference_of({"parameters": weights}, common))

    chance = np.random.default_rng(hosts)
    for number in range(STEPS):
        ids = chance.integers(0, rows, (hosts, BATCH))
        gradients = chance.uniform(0.25, 1.0, (hosts, BATCH, DIM)).astype(np.float32)
        before = engine.read()
        activations = engine.train(of_tables(*ids), None, of_tables(*gradients))
        after = engine.read()
        for place, (table, (case, common)) in enumerate(zip(expected, KINDS, strict=True)):
            assert_step(
                [table],
                [
                    Lookup(core, 0, dense(row), activations[core][f"ids{place}"], gradients[core])
                    for core, row in enumerate(ids)
                ],
                after[f"table{place}"],
                RATE,
                f"{case.name} {common}, {mode}, {rows} rows, {hosts} hosts, {strategy}, {number}",
                rows=before[f"table{place}"]["parameters"],
                n_terms=1,
                num_cores=hosts,
                cores_per_host=1,
                sharding=strategy,
            )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rows", VOCABULARIES)
def test_the_rows_of_the_padding_are_nobodys(rows: int, strategy: str) -> None:
    """An id beyond the vocabulary is refused, or dropped, though its host has a row for it."""
    batch = of_tables(*[[0, rows, 0]] * 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rows 0 to {rows - 1}"):
        engine_with(rows, 5, strategy).look_up(batch)

    engine = engine_with(rows, 5, strategy, out_of_range="drop")
    for core in engine.look_up(batch):
        assert core["ids0"][1].tolist() == [0.0, 0.0]
        assert np.abs(core["ids0"][0]).max() > 0
