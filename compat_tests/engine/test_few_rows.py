"""Tables with fewer rows than there are hosts: training, lookups, serving and checkpoints."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import CASES, MODES, OptimizerCase
from compat_tests.conftest import Array, Engine, Runner
from compat_tests.references.inputs import dense
from compat_tests.references.training import Lookup, assert_step
from tf2_engine import OPTIMIZERS, Adagrad, EngineSpec, FeatureSpec, TableSpec, errors
from tf2_engine.serving import cpu_embedding_lookup

DIM, BATCH, STEPS, RATE = 2, 3, 3, 0.5
VOCABULARIES = (1, 2)
HOSTS = (3, 5)
STRATEGIES = ("div", "mod")
SMALL = [
    pytest.param(
        mode, *place, id="-".join(map(str, (mode, *place))), marks=() if quick else pytest.mark.full
    )
    for turn, place in enumerate(itertools.product(VOCABULARIES, HOSTS, STRATEGIES))
    for number, mode in enumerate(MODES)
    for quick in [mode == "eager" or turn == number]
]

KINDS: tuple[tuple[OptimizerCase, dict[str, Any]], ...] = (
    (CASES["Adagrad"], {}),
    (CASES["Adagrad"], {"use_gradient_accumulation": False}),
    (CASES["Adam, every row"], {}),
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
    """Returns [rows, dim], made up with a row for every host."""
    return np.random.default_rng(rows).uniform(-1, 1, (max(rows, hosts), DIM)).astype(np.float32)


@pytest.mark.parametrize("mode, rows, hosts, strategy", SMALL)
def test_steps_follow_the_reference(mode: str, rows: int, hosts: int, strategy: str) -> None:
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


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("rows", VOCABULARIES)
def test_serving_reads_the_same_rows(rows: int, hosts: int, strategy: str) -> None:
    """A lookup for serving over the shards gives each id the row that was written for it."""
    engine = engine_with(rows, hosts, strategy)
    weights = first_weights(rows, hosts)
    engine.write("table0", weights)
    spec = EngineSpec(
        (TableSpec("table0", rows, DIM, "sum", Adagrad(0.5)),),
        (FeatureSpec("ids0", "table0"),),
        partition_strategy=strategy,
    )

    for tables in (engine.embedding.tables, engine.embedding.embedding_tables):
        served = cpu_embedding_lookup({"ids0": tf.range(rows)}, None, tables, spec)
        np.testing.assert_array_equal(served["ids0"], weights[:rows])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rows 0 to {rows - 1}"):
        cpu_embedding_lookup({"ids0": tf.constant([rows])}, None, tables, spec)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rows", VOCABULARIES)
def test_checkpoints_hold_the_vocabulary(rows: int, strategy: str, tmp_path: pathlib.Path) -> None:
    """A checkpoint of five hosts holds the rows and slots there are; other placements read it.

    Saving and restoring is the identity.
    """
    engine = engine_with(rows, 5, strategy)
    weights = first_weights(rows, 5)
    for place in range(len(KINDS)):
        engine.write(f"table{place}", weights + place)
    ones = np.ones([BATCH, DIM], np.float32)
    engine.train(of_tables(*[[0, rows - 1, 0]] * 5), None, of_tables(*[ones] * 5))
    held = engine.read()
    path = tf.train.Checkpoint(embedding=engine.embedding).write(str(tmp_path / "few"))

    shapes = {
        key: shape
        for key, shape in tf.train.load_checkpoint(path).get_variable_to_shape_map().items()
        if key.endswith("VARIABLE_VALUE") and "table" in key
    }
    assert len(shapes) == 2 + 2 + 3
    assert all(shape == [rows, DIM] for shape in shapes.values())
    for hosts, other_strategy in itertools.product((1, 3, 5), STRATEGIES):
        other = engine_with(rows, hosts, other_strategy)
        tf.train.Checkpoint(embedding=other.embedding).read(path).assert_consumed()
        for table, kinds in other.read().items():
            for kind, values in kinds.items():
                np.testing.assert_array_equal(
                    values[:rows], held[table][kind][:rows], f"{table}, {kind}, {hosts} hosts"
                )


def test_fewer_shards_than_hosts_are_refused_for_serving() -> None:
    spec = EngineSpec(
        (TableSpec("table", 2, DIM, "sum", Adagrad(0.5)),), (FeatureSpec("ids", "table"),)
    )
    with pytest.raises(errors.InvalidInput, match=r"Feature 'ids' \(table 'table'\).*expected"):
        cpu_embedding_lookup({"ids": tf.constant([0])}, None, {"table": [tf.zeros([1, DIM])]}, spec)
