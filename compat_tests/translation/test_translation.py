"""A legacy spec is read completely; settings without effect are noted, or refused by an error.

Oracle: the rules in stock's code.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.cases.config_protos import CASES
from compat_tests.cases.legacy import Case, Column, Feature, Optimizer, Table
from compat_tests.conftest import HAS_STOCK
from compat_tests.support import legacy_specs, translating
from compat_tests.support.legacy_specs import OURS
from estimator_bridge.settings import render
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.translation.translate import output_shapes

if HAS_STOCK:
    from compat_tests.support import stock

# --- Reading -------------------------------------------------------------------------------


def test_the_last_of_shared_columns_describes_their_table() -> None:
    """Where columns of one table disagree the last one wins, as in stock."""
    columns = legacy_specs.build_columns((Column(("a", "b"), combiner="mean"),))
    columns[1].get_combiner = lambda: "sqrtn"
    (table,) = read_spec(OURS.EmbeddingConfigSpec(columns, OURS.AdagradParameters(0.1))).tables
    assert table.combiner == "sqrtn"


def test_a_feature_of_two_tables_is_refused() -> None:
    categorical = tf.feature_column.categorical_column_with_identity("a", 9)
    weighted = tf.feature_column.weighted_categorical_column(categorical, "w")
    columns = [
        tf.compat.v1.tpu.experimental.embedding_column(column, 4)
        for column in (categorical, weighted)
    ]
    spec = OURS.EmbeddingConfigSpec(columns, OURS.AdagradParameters(0.1))
    with pytest.raises(ValueError, match=r"'a' .* 'tbl_a' and 'tbl_a_weighted_by_w'"):
        read_spec(spec)


def test_an_ordinary_column_is_refused_when_a_tpu_is_used() -> None:
    """A column without a TPU table passes the constructor and is a TypeError here."""
    column = tf.feature_column.numeric_column("x")
    spec = OURS.EmbeddingConfigSpec([column], OURS.AdagradParameters(0.1))
    with pytest.raises(TypeError, match=r"NumericColumn.*use_tpu=False"):
        read_spec(spec)


def test_tensor_core_columns_are_read_apart() -> None:
    column = tf.compat.v1.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_identity("a", 9),
        4,
        embedding_lookup_device="tpu_tensor_core",
        tensor_core_shape=[None, 3],
    )
    legacy = read_spec(OURS.EmbeddingConfigSpec([column], OURS.AdagradParameters(0.1)))
    assert legacy.tables == ()
    assert dataclasses.astuple(legacy.tensor_core_columns[0]) == ("a", 3)


@pytest.mark.parametrize("case", CASES[::5], ids=lambda case: case.name)
def test_reading_leaves_the_spec_as_it_is(case: Case) -> None:
    """The user's spec, its dicts and its optimizers are the same before and after."""
    spec = legacy_specs.build(case)
    before = (repr(spec), repr(vars(spec.optimization_parameters or object)))
    legacy = read_spec(spec)
    translating.translate_read(legacy, training=case.training)
    output_shapes(legacy, case.batch_size, case.num_cores)
    assert (repr(spec), repr(vars(spec.optimization_parameters or object))) == before


# --- Tables, features, shapes --------------------------------------------------------------


@legacy_specs.needs_stock
@pytest.mark.parametrize("case", CASES[-40:], ids=lambda case: case.name)
def test_features_and_combiners_are_in_the_order_of_stock(case: Case) -> None:
    """Features come as stock enqueues them, each combined as stock combines it."""
    legacy = read_spec(legacy_specs.build(case))
    spec = translating.translate_read(legacy, training=False)
    combiners = {table.name: table.combiner for table in spec.tables}
    ours = [(feature.name, combiners[feature.table]) for feature in spec.features]
    assert ours == stock.lookups(legacy_specs.build(case, stock.CLASSES))


def test_an_open_batch_size_leaves_the_first_dimension_open() -> None:
    legacy = translating.read(features={"f": Feature("t"), "s": Feature("t", 5)})
    assert output_shapes(legacy, batch_size=None, num_cores=2) == ((None,), (None, 5))


def test_cores_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"batch size 10 .* cores 4"):
        output_shapes(translating.read(), batch_size=10, num_cores=4)


def test_a_table_without_features_is_refused() -> None:
    with pytest.raises(ValueError, match="Table 'idle'"):
        translating.translated(tables={"t": Table(), "idle": Table()})


def test_bad_values_that_replace_smuggled_in_are_refused() -> None:
    """A partition strategy, or the combiner of a table, is a ValueError with its value."""
    spec = legacy_specs.build(translating.case())
    with pytest.raises(ValueError, match="'range'"):
        translating.translate_read(read_spec(spec._replace(partition_strategy="range")))
    spec.table_to_config_dict["t"] = spec.table_to_config_dict["t"]._replace(combiner="max")
    with pytest.raises(ValueError, match=r"Table 't'.*'max'"):
        translating.translate_read(read_spec(spec))


# --- Notes and quirks ----------------------------------------------------------------------

# Specs, and what their one note must say.
NOTED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "combiner none": ({"tables": {"t": Table(combiner=None)}}, "'t'.*combiner=None"),
    "table rate zero": ({"tables": {"t": Table(learning_rate=0.0)}}, "'t'.*`learning_rate`=0.0"),
    "decay zero of two tables": (
        {
            **translating.optimizer("Adam", weight_decay_factor=0.0),
            "tables": {"a": Table(), "b": Table()},
            "features": {"x": Feature("a"), "y": Feature("b")},
        },
        "`AdamParameters`: `weight_decay_factor`=0.0",
    ),
    "no decay to multiply": (
        translating.optimizer("Adam", multiply_weight_decay_factor_by_learning_rate=True),
        "`AdamParameters`: `multiply_weight_decay_factor_by_learning_rate`",
    ),
    "clipping limit": ({"options": {"clipping_limit": 0.5}}, "`clipping_limit`=0.5.*documented"),
}


@pytest.mark.parametrize("name", NOTED)
def test_a_setting_that_surprises_is_noted_once(name: str) -> None:
    """A setting with no effect, or another one, leads to exactly one line that names it."""
    settings, words = NOTED[name]
    notes = translating.warned(**settings)
    assert len(notes) == 1, notes
    assert re.search(words, notes[0])


def test_an_ordinary_spec_has_no_notes() -> None:
    assert translating.warned(columns=(Column(("a",)), Column(("b", "c"), 5))) == []


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("identity", {"num_buckets": 9, "default_value": 0}, "'a'.*`default_value`"),
        ("vocabulary_list", {"vocabulary_list": ["x", "y"]}, "'a'.*vocabulary"),
    ],
    ids=["default", "vocabulary"],
)
def test_columns_that_a_tpu_does_not_apply_are_noted(
    kind: str, settings: Mapping[str, Any], words: str
) -> None:
    """A column that transforms its input on a CPU leads to a line: a TPU takes ids as they are."""
    column = getattr(tf.feature_column, f"categorical_column_with_{kind}")("a", **settings)
    embedding_column = tf.compat.v1.tpu.experimental.embedding_column(column, 4)
    spec = OURS.EmbeddingConfigSpec([embedding_column], OURS.AdagradParameters(0.1))
    (note,) = render.warnings_of_step(read_spec(spec), training=True)
    assert re.search(words, note)


def test_inference_says_nothing_about_updates() -> None:
    """Without training only what changes lookups is noted."""
    (note,) = translating.warned(
        training=False,
        tables={"t": Table(combiner=None, learning_rate=0.0)},
        options={"clipping_limit": 0.5},
    )
    assert "combiner=None" in note


def test_a_documented_clipping_limit_limits_weights() -> None:
    """With quirks="documented" weights stay in ±limit, except where the optimizer has limits."""
    with_limit = Optimizer("Adagrad", {"learning_rate": 0.1, "clip_weight_max": 9.0})
    translation = translating.translated(
        tables={"own": Table(optimizer=with_limit), "none": Table()},
        features={"x": Feature("own"), "y": Feature("none")},
        options={"clipping_limit": 2},
    )
    limits = {
        table.name: (table.optimizer.clip_weight_min, table.optimizer.clip_weight_max)
        for table in translation.tables
        if table.optimizer is not None
    }
    assert limits == {"none": (-2.0, 2.0), "own": (None, 9.0)}


def test_a_stock_clipping_limit_is_ignored_with_a_note() -> None:
    """With quirks="stock" the limit does nothing, and one line says so."""
    translation = translating.translated("stock", options={"clipping_limit": 0.5})
    optimizer = translation.tables[0].optimizer
    assert optimizer is not None
    assert not optimizer.clips_weights
    (note,) = translating.warned("stock", options={"clipping_limit": 0.5})
    assert "ignored" in note


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_bad_clipping_limit_is_refused_where_it_counts(limit: Any) -> None:
    """A limit that is no positive number is a ValueError, but ignored where stock ignores it."""
    with pytest.raises(ValueError, match="`clipping_limit` must be a positive number"):
        translating.translated(options={"clipping_limit": limit})
    assert len(translating.warned("stock", options={"clipping_limit": limit})) == 1


@pytest.mark.parametrize("quirks", ["fixed", "stock"])
def test_a_clipping_limit_of_another_type_is_refused(quirks: str) -> None:
    """A limit that is no number is a mistake, also where none would matter."""
    with pytest.raises(TypeError, match="`clipping_limit` must be a number or None, got '1'"):
        translating.translated(quirks, options={"clipping_limit": "1"})
