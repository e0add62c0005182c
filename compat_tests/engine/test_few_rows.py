"""Tables with fewer rows than there are hosts: training, lookups and padding."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import CASES, MODES, OptimizerCase
from compat_tests.conftest import Array, Engine, Runner
from compat_tests.references.inputs import dense
from compat_tests.references.training import Lookup, assert_step
from tf2_engine import OPTIMIZERS, EngineSpec, FeatureSpec, TableSpec

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
