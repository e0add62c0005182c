"""Stock trains with the objects of `spec.to_tf2()` on a software TPU, as our engine does."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.cases.legacy import Case, Column, Feature, Optimizer, Table
from compat_tests.support import fake_tpu, legacy_checkpoints, legacy_specs, translating
from tf2_engine import soft_tpu

EMB = tf.tpu.experimental.embedding
CORES, BATCH, STEPS = 2, 4, 4
RATE = {"learning_rate": 0.1}

SPECS = {
    "shared columns": Case(
        "here",
        Optimizer("Adagrad", RATE),
        columns=(Column(("a", "b"), combiner="sqrtn"), Column(("c",), max_sequence_length=2)),
    ),
    "Adam": translating.case(optimizer=Optimizer("Adam", RATE)),
    "Ftrl": translating.case(
        optimizer=Optimizer("Ftrl", {**RATE, "l1_regularization_strength": 0.01})
    ),
    "a rate each": translating.case(
        optimizer=Optimizer("StochasticGradientDescent", RATE),
        tables={"t": Table(learning_rate=0.3), "u": Table(learning_rate_fn="decaying")},
        features={"f": Feature("t"), "g": Feature("u"), "h": Feature("u", max_sequence_length=2)},
    ),
    "momentum": translating.case(
        optimizer=Optimizer("AdagradMomentum", {**RATE, "momentum": 0.5, "epsilon": 0.1})
    ),
}


def objects(name: str) -> Any:
    """Returns what a spec is in TensorFlow 2, with tables that start alike in every engine."""
    tf2 = legacy_specs.build(SPECS[name]).to_tf2()
    for number, table in enumerate(tables_of(tf2)):
        random = np.random.default_rng(number)
        start = random.uniform(-1, 1, (table.vocabulary_size, table.dim)).astype("f4")
        table.initializer = tf.constant_initializer(start)
    return tf2


def tables_of(tf2: Any) -> list[Any]:
    """Returns the TableConfigs, each once."""
    return list({id(f.table): f.table for f in tf2.feature_config.values()}.values())


def batch(tf2: Any, step: int, core: int) -> dict[str, Any]:
    """Returns raw features of a core: two ids a sample, or one."""
    random = np.random.default_rng([step, core])
    rows = {}
    for key in tf2.feature_config:
        ids = random.integers(0, 5, (BATCH, 2))
        ids[random.random(BATCH) < 0.4, 1] = -1
        rows[key] = tf.constant(ids)
    return rows


def trained(kind: Any, tf2: Any) -> tuple[list[Any], dict[str, Any]]:
    """Trains an engine of a class on two cores; returns all activations, and the tables."""
    strategy = soft_tpu.SoftTPUStrategy(CORES)
    with strategy.scope():
        engine = kind(tf2.feature_config, None, **tf2.options)
    engine.build(BATCH)

    @tf.function
    def train(ids: Any) -> Any:
        engine.enqueue(ids)

        def core() -> Any:
            activations = engine.dequeue()
            engine.apply_gradients(tf.nest.map_structure(lambda x: 0.5 * x + 0.1, activations))
            return activations

        return strategy.run(core)

    seen = []
    for step in range(STEPS):
        parts = [tf2.preprocessing(batch(tf2, step, core)).ids for core in range(CORES)]
        looked_up = train(fake_tpu.distribute(strategy, parts))
        for key in sorted(looked_up):
            seen += [each.numpy() for each in strategy.experimental_local_results(looked_up[key])]
        if tf2.step is not None:
            tf2.step.assign_add(1)
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(embedding=engine).save(f"{folder}/ckpt")
        saved = legacy_checkpoints.read(path)
    return seen, {name: each for name, each in saved.items() if name.startswith("embedding/")}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=() if each == "shared columns" else pytest.mark.full)
        for each in SPECS
    ],
)
def test_stock_trains_with_the_objects_as_our_engine_does(name: str) -> None:
    """Activations of every step, tables and slots are the same on two cores of one software TPU."""
    first, second = objects(name), objects(name)
    assert first.for_stock

    with fake_tpu.stock_runs():
        of_stock, tables_of_stock = trained(EMB.TPUEmbedding, first)
    ours, tables = trained(tf2_engine.TPUEmbedding, second)

    for actual, expected in zip(ours, of_stock, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert set(tables) == set(tables_of_stock)
    for key, expected in tables_of_stock.items():
        np.testing.assert_array_equal(tables[key], expected, err_msg=key)
    table = tables_of(first)[0]
    start = table.initializer([table.vocabulary_size, table.dim], tf.float32)
    after = tables[f"embedding/{table.name}/.ATTRIBUTES/VARIABLE_VALUE"]
    assert np.abs(after - start).max() > 0.01
