"""`EmbeddingConfigSpec.to_tf2` creates the same tables for TensorFlow 2, and lists changes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases import config_protos
from compat_tests.cases.legacy import Case, Column, Feature, Optimizer, Table
from compat_tests.support import legacy_specs, translating
from estimator_bridge.migrate.legacy_specs.spec_to_tf2 import EFFECTS
from tf2_engine import TPUEmbedding, specs

emb = tf.tpu.experimental.embedding

ADAGRAD = Optimizer("Adagrad", {"learning_rate": 0.1})


def of(**settings: Any) -> Any:
    """Returns the objects of TensorFlow 2 of a spec with one table and one feature."""
    return legacy_specs.build(translating.case(**settings)).to_tf2()


@pytest.mark.parametrize(
    "case",
    [case for case in config_protos.CASES if case.optimizer is not None],
    ids=lambda c: c.name,
)
def test_configs_say_what_the_legacy_spec_says(case: Case) -> None:
    """The FeatureConfigs, read back, are tables and features of the engine that runs the spec."""
    tf2 = legacy_specs.build(case).to_tf2()
    read = specs.from_feature_config(tf2.feature_config)

    wanted = {
        table.name: dataclasses.replace(table, hot_id_replication=False)
        for table in tf2.engine_spec.tables
    }
    assert {table.name: table for table in read.tables} == wanted
    assert {(f.name, f.table, f.max_sequence_length) for f in read.features} == {
        (f.name, f.table, f.max_sequence_length) for f in tf2.engine_spec.features
    }
    assert tf2.options["pipeline_execution_with_tensor_core"] == (
        tf2.engine_spec.pipeline_execution_with_tensor_core
    )
    assert {change.effect for change in tf2.report.changes} <= set(EFFECTS)


@pytest.mark.parametrize(
    "legacy, settings, kind, stock",
    [
        ("Adagrad", {}, "Adagrad", True),
        ("Adam", {"clip_gradient_max": 2.0}, "Adam", True),
        ("StochasticGradientDescent", {}, "SGD", True),
        ("AdagradMomentum", {"momentum": 0.9}, "AdagradMomentum", True),
        ("Ftrl", {"beta": 0.5}, "FTRL", True),
        ("Ftrl", {"initial_accumulator_value": 0.0}, "FTRL", False),
        ("Momentum", {"momentum": 0.9}, "Momentum", False),
    ],
)
def test_optimizers_are_stocks_where_it_has_them(
    legacy: str, settings: dict[str, Any], kind: str, stock: bool
) -> None:
    """An optimizer is stock's if that can say all of it, else the engine's, with the reason."""
    tf2 = of(**translating.optimizer(legacy, **settings))
    translated = tf2.feature_config["f"].table.optimizer

    assert type(translated).__name__ == kind
    assert isinstance(translated, getattr(emb, kind, ())) == stock
    assert tf2.for_stock == stock
    assert ["ours"] * (not stock) == [c.effect for c in tf2.report.changes if c.effect == "ours"]


def test_every_legacy_setting_that_was_changed_is_reported() -> None:
    """The report names each setting that TensorFlow 2 does not take as it is, and says why."""
    tf2 = of(
        optimizer=Optimizer("Ftrl", {"learning_rate": 0.1, "weight_decay_factor": 0.0}),
        tables={
            "t": Table(combiner=None, learning_rate=0.0, hot_id_replication=True),
            "u": Table(
                learning_rate_fn="decaying",
                optimizer=Optimizer("Momentum", {"learning_rate": 0.1, "momentum": 0.9}),
            ),
            "v": Table(learning_rate=0.3),
        },
        features={
            "f": Feature("t"),
            "g": Feature("u", weight_key="w"),
            "h": Feature("v", max_sequence_length=3),
        },
        options={
            "clipping_limit": 2.0,
            "experimental_gradient_multiplier_fn": "warming",
            "partition_strategy": "mod",
            "profile_data_directory": "somewhere",
        },
    )
    settings = {(c.where, c.setting, c.effect) for c in tf2.report.changes}

    assert settings == {
        ("spec", "optimization_parameters", "form"),
        ("spec", "clipping_limit", "numbers"),
        ("spec", "experimental_gradient_multiplier_fn", "by hand"),
        ("spec", "partition_strategy", "ours"),
        ("spec", "profile_data_directory", "ours"),
        ("table 't'", "learning_rate", "form"),
        ("table 't'", "weight_decay_factor", "left out"),
        ("table 't'", "combiner", "numbers"),
        ("table 't'", "hot_id_replication", "ours"),
        ("table 'u'", "optimization_parameters", "ours"),
        ("table 'u'", "learning_rate_fn", "by hand"),
        ("table 'v'", "learning_rate", "form"),
        ("table 'v'", "weight_decay_factor", "left out"),
        ("feature 'g'", "weight_key", "form"),
        ("feature 'h'", "max_sequence_length", "form"),
        ("features", "dense ids", "numbers"),
    }
    assert json.loads(json.dumps(tf2.report.as_dict()))["changes"][0]["why"]
    assert all(line.startswith("[") and line.endswith(".") for line in tf2.report.lines())


def test_rates_and_the_multiplier_follow_the_step() -> None:
    """Learning-rate functions and the gradient multiplier read the one step, which one counts."""
    tf2 = of(
        tables={"t": Table(learning_rate_fn="decaying"), "u": Table(learning_rate_fn="decaying")},
        features={"f": Feature("t"), "g": Feature("u")},
        options={"experimental_gradient_multiplier_fn": "warming"},
    )
    rate = tf2.feature_config["f"].table.optimizer.learning_rate
    before = float(rate()), float(tf2.gradient_multiplier())
    tf2.step.assign(4)

    np.testing.assert_allclose(before, [0.1, 0.0])
    np.testing.assert_allclose([float(rate()), float(tf2.gradient_multiplier())], [0.02, 0.04])
    # One function is one tag on the device, also for two tables.
    assert rate is tf2.feature_config["g"].table.optimizer.learning_rate


def test_the_users_own_step_is_read() -> None:
    """A variable, such as the optimizer's iterations, or a callable may be the step.

    It is read whenever the rate is.
    """
    spec = legacy_specs.build(translating.case(tables={"t": Table(learning_rate_fn="decaying")}))
    mine = tf.Variable(0, dtype=tf.int64)

    for step in (mine, lambda: mine + 0):
        rate = spec.to_tf2(step=step).feature_config["f"].table.optimizer.learning_rate
        for number, expected in ((9, 0.01), (4, 0.02)):
            mine.assign(number)
            assert float(rate()) == pytest.approx(expected)


def test_the_engine_trains_from_raw_features() -> None:
    """Columns, input side included, train in the engine: the row of the id is moved by the rate."""
    spec = legacy_specs.build(
        Case(
            "here",
            Optimizer("StochasticGradientDescent", {"learning_rate": 0.5}),
            columns=(Column(("a",), weight_key="w", combiner="sum"),),
        )
    )
    tf2 = spec.to_tf2()
    engine = TPUEmbedding(tf2.feature_config, **tf2.options)
    raw = {"a": tf.sparse.from_dense([[7]]), "w": tf.sparse.from_dense([[2.0]])}
    ids, weights, _ = tf2.preprocessing(raw)
    engine.enqueue(ids, weights)
    before = engine.embedding_tables[tf2.feature_config["a"].table].numpy()
    activation = engine.dequeue()["a"].numpy()
    engine.apply_gradients({"a": tf.ones([1, 4])})
    after = engine.embedding_tables[tf2.feature_config["a"].table].numpy()

    np.testing.assert_array_equal(activation[0], 2 * before[7])
    np.testing.assert_array_equal(after[7], before[7] - np.float32(1.0))
    np.testing.assert_array_equal(np.delete(after, 7, 0), np.delete(before, 7, 0))


def test_columns_of_an_unknown_kind_leave_the_input_to_the_user() -> None:
    """Where the ids of a column cannot be made, the rest is translated and the report says so."""

    class Own:
        key, num_buckets, name = "a", 13, "own"

    spec = legacy_specs.build(Case("here", ADAGRAD, columns=(Column(("a",)),)))
    column = spec.feature_columns[0]
    broken = type(
        "Broken", (), {n: getattr(column, n) for n in dir(column) if n.startswith("get_")}
    )()
    broken.categorical_column = Own()
    tf2 = spec._replace(feature_columns=[broken]).to_tf2()

    assert tf2.preprocessing is None
    assert [c.setting for c in tf2.report.changes if c.effect == "by hand"] == ["feature_columns"]
