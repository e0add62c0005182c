"""Conversion of checkpoints: no number is lost between legacy programs and TF2."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf2_engine
from compat_tests import legacy_checkpoints
from compat_tests.cases import every, pairwise
from compat_tests.legacy_specs import OURS
from estimator_bridge import checkpoints, errors
from estimator_bridge.checkpoints.bundle import Writer
from estimator_bridge.checkpoints.layout import Layout
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.translation.translate import translate

END = "/.ATTRIBUTES/VARIABLE_VALUE"

OPTIMIZERS: Mapping[str, Any] = {
    "StochasticGradientDescent": OURS.StochasticGradientDescentParameters(0.1),
    "Adagrad": OURS.AdagradParameters(0.1, initial_accumulator=0.25),
    "Adam": OURS.AdamParameters(0.1),
    "Ftrl": OURS.FtrlParameters(0.1),
    "Momentum": OURS.MomentumParameters(0.1, 0.9),
    "RMSProp": OURS.RMSPropParameters(0.1, 0.9, 0.5, 1e-3),
    "ProximalAdagrad": OURS.ProximalAdagradParameters(0.1),
    "AdagradMomentum": OURS.AdagradMomentumParameters(0.1, 0.9),
    "ProximalYogi": OURS.ProximalYogiParameters(0.1),
    "FrequencyEstimator": OURS.FrequencyEstimatorParameters(0.1, 10.0, 5.0, 0.5),
}

TPU_SLOTS: Mapping[str, Mapping[str, str]] = {
    "StochasticGradientDescent": {},
    "Adagrad": {"accumulators": "Adagrad"},
    "Adam": {"momenta": "Adam/m", "velocities": "Adam/v"},
    "Ftrl": {"accumulators": "Ftrl", "linears": "Ftrl_1"},
    "Momentum": {"momenta": "Momentum"},
    "RMSProp": {"ms": "RMSProp/ms", "mom": "RMSProp/mom"},
    "ProximalAdagrad": {"accumulators": "ProximalAdagrad"},
    "AdagradMomentum": {
        "accumulators": "AdagradMomentum/Accumulator",
        "momenta": "AdagradMomentum/Momentum",
    },
    "ProximalYogi": {"v": "ProximalYogi", "m": "ProximalYogi_1"},
    "FrequencyEstimator": {"last_hit_step": "FrequencyEstimator"},
}
"""What stock's TPU programs call a slot of the engine, behind the table's name and a slash."""

CPU_SLOTS: Mapping[str, Mapping[str, str]] = {
    **TPU_SLOTS,
    "Adam": {"momenta": "Adam", "velocities": "Adam_1"},
    "RMSProp": {"ms": "RMSProp", "mom": "RMSProp_1"},
}
"""The same for programs that TF1's optimizers trained."""

DICT_ONLY = ("AdagradMomentum", "ProximalYogi", "FrequencyEstimator")

# Table, its variable, rows: with five hosts "few" has fewer rows than hosts.
TABLES = {
    "dict": {"users": ("users", 13), "few": ("few", 3)},
    "columns": {
        "tbl_users": ("dense_features/users_embedding/embedding_weights", 13),
        "tbl_both": ("both", 3),
    },
}

FACTORS = {
    "optimizer": tuple(OPTIMIZERS),
    "strategy": ("div", "mod"),
    "hosts": (1, 2, 5),
    "form": ("dict", "columns"),
    "to_strategy": ("mod", "div"),
    "to_hosts": (5, 1, 2),
}
REFUSED = [(("optimizer", name), ("form", "columns")) for name in DICT_ONLY]


def _row(row: Mapping[str, Any]) -> str:
    return ", ".join(str(level) for level in row.values())


QUICK = pairwise(FACTORS, REFUSED)
ROWS = [
    pytest.param(row, id=_row(row), marks=() if row in QUICK else pytest.mark.full)
    for row in every(FACTORS, REFUSED)
]


def dim_of(optimizer: str) -> int:
    """Returns the dim of the tables."""
    return 1 if optimizer == "FrequencyEstimator" else 4


def spec_of(
    optimizer: str, form: str, strategy: str = "div", classes: Any = OURS, parameters: Any = None
) -> Any:
    """Returns a spec of two tables.

    Args:
        classes: a namespace with the legacy classes.
        parameters: the optimizer, as an object of these.
    """
    options = {
        "optimization_parameters": parameters or OPTIMIZERS[optimizer],
        "partition_strategy": strategy,
    }
    if form == "dict":
        rate = {}
        if optimizer == "FrequencyEstimator":  # its rate is the step
            rate = {"learning_rate_fn": lambda step: tf.cast(step, tf.float32)}
        configs = {
            name: classes.TableConfig(rows, dim_of(optimizer), **rate)
            for name, (_, rows) in TABLES[form].items()
        }
        features = {name: classes.FeatureConfig(table_id=name) for name in configs}
        return classes.EmbeddingConfigSpec(
            feature_to_config_dict=features, table_to_config_dict=configs, **options
        )
    identity = tf.feature_column.categorical_column_with_identity
    columns = tf.compat.v1.tpu.experimental
    return classes.EmbeddingConfigSpec(
        feature_columns=[
            columns.embedding_column(identity("users", 13), dimension=4),
            *columns.shared_embedding_columns(
                [identity("a", 3), identity("b", 3)],
                dimension=4,
                shared_embedding_collection_name="both",
            ),
        ],
        **options,
    )


def tables_of(
    optimizer: str, form: str, slots: Mapping[str, Mapping[str, str]] = TPU_SLOTS
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns values of all parts of the tables by legacy name, and the engine's key of each."""
    values, keys = {}, {}
    for number, (table, (variable, rows)) in enumerate(TABLES[form].items()):
        parts = {"": "", **{f".S{slot}": f"/{name}" for slot, name in slots[optimizer].items()}}
        for part, (slot, suffix) in enumerate(parts.items()):
            first = 1000.0 * number + 200.0 * part + 0.125
            count = rows * dim_of(optimizer)
            values[variable + suffix] = np.arange(first, first + count, dtype=np.float32).reshape(
                rows, -1
            )
            keys[variable + suffix] = f"embedding/{table}{slot}{END}"
    return values, keys


OTHERS = {
    "global_step": np.int64(77),
    "dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "dense/kernel/Adam": np.ones([2, 3], np.float32),
    "beta1_power": np.float32(0.9),
    "counts": np.arange(3, dtype=np.int32),
}
"""Variables of the model."""


def engine_of(spec: Any) -> Any:
    """Returns an engine of a spec, built."""
    translated = translate(
        read_spec(spec), training=True, batch_size=2, num_cores=1, step=lambda: tf.constant(0)
    )
    engine = tf2_engine.TPUEmbedding(translated.engine_spec)
    engine.build_for(translated.output_shapes)
    return engine


def assert_same(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Checks that two sets of tensors have the same names, types and bytes."""
    assert set(wanted) == set(found)
    for name, value in wanted.items():
        assert np.asarray(value).dtype == np.asarray(found[name]).dtype, name
        assert np.array_equal(value, found[name]), name


# --- Round trips ----------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_a_round_trip_loses_nothing(row: Mapping[str, Any], tmp_path: pathlib.Path) -> None:
    """By name, to objects, into an engine, and by name on other hosts: all tensors are equal."""
    optimizer, form = row["optimizer"], row["form"]
    values, keys = tables_of(optimizer, form)
    path = str(tmp_path / "old" / "model.ckpt-77")
    legacy_checkpoints.write(path, values, OTHERS, row["hosts"], row["strategy"])
    spec = spec_of(optimizer, form, row["strategy"])

    checkpoints.convert(path, str(tmp_path / "objects"), spec=spec)

    middle = legacy_checkpoints.read(str(tmp_path / "objects"))
    assert_same(values, {name: middle[key] for name, key in keys.items()})
    engine = engine_of(spec)
    restored = tf.train.Checkpoint(embedding=engine).restore(str(tmp_path / "objects/ckpt-77"))
    restored.assert_existing_objects_matched()
    for table, (variable, _) in TABLES[form].items():
        held = engine.tables[table].variables
        assert_same({variable: values[variable]}, {variable: held["parameters"][0].numpy()})
        for slot, suffix in TPU_SLOTS[optimizer].items():
            np.testing.assert_array_equal(values[f"{variable}/{suffix}"], held[slot][0])

    to_hosts, to_strategy = row["to_hosts"], row["to_strategy"]
    checkpoints.convert(
        str(tmp_path / "objects"),
        str(tmp_path / "new"),
        spec=spec,
        to_hosts=to_hosts,
        to_partition=to_strategy,
        scope="dense_features",
    )

    found = legacy_checkpoints.read(str(tmp_path / "new"))
    for name in values:
        found[name] = legacy_checkpoints.by_id(found[name], to_hosts, to_strategy)
    assert_same({**values, **OTHERS}, found)
    for name, value in values.items():
        parts = legacy_checkpoints.read_parts(
            str(tmp_path / "new/model.ckpt-77"), name, value.shape, to_hosts
        )
        np.testing.assert_array_equal(
            np.concatenate(parts), legacy_checkpoints.permuted(value, to_hosts, to_strategy)
        )


def test_the_quick_tier_has_every_pair() -> None:
    """The quick tier is a part of the whole, and less than a fifth of it."""
    whole = every(FACTORS, REFUSED)
    assert all(row in whole for row in QUICK)
    assert len(QUICK) * 5 < len(whole)


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in DICT_ONLY])
def test_slots_of_cpu_programs(optimizer: str, tmp_path: pathlib.Path) -> None:
    """A checkpoint of TF1's optimizers is read, and written, by the names that they give slots."""
    values, keys = tables_of(optimizer, "columns", CPU_SLOTS)
    old = legacy_checkpoints.write(str(tmp_path / "old/model.ckpt-77"), values, OTHERS)
    spec = spec_of(optimizer, "columns")

    checkpoints.convert(old, str(tmp_path / "objects"), spec=spec)
    checkpoints.convert(
        str(tmp_path / "objects"), str(tmp_path / "new"), spec=spec, slots="cpu", like=old
    )

    middle = legacy_checkpoints.read(str(tmp_path / "objects"))
    assert_same(values, {name: middle[key] for name, key in keys.items()})
    assert_same({**values, **OTHERS}, legacy_checkpoints.read(str(tmp_path / "new")))


def test_by_name_to_other_hosts(tmp_path: pathlib.Path) -> None:
    """Without a detour a checkpoint of mod on 5 hosts becomes one of mod on 2, and CPU slots."""
    values, _ = tables_of("Adam", "dict")
    wanted, _ = tables_of("Adam", "dict", CPU_SLOTS)
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS, 5, "mod")

    checkpoints.convert(
        old, str(tmp_path / "new"), spec=spec_of("Adam", "dict", "mod"), to="names",
        to_hosts=2, slots="cpu",
    )  # fmt: skip

    found = legacy_checkpoints.read(str(tmp_path / "new"))
    for name in wanted:
        found[name] = legacy_checkpoints.by_id(found[name], 2, "mod")
    assert_same({**wanted, **OTHERS}, found)


def test_a_rewritten_mod_checkpoint_needs_the_hosts(tmp_path: pathlib.Path) -> None:
    """Rows by mod in a tensor without slices are put in order when the hosts are given.

    Without them one host is assumed, and that is said.
    """
    values, keys = tables_of("Adagrad", "dict")
    stored = {name: legacy_checkpoints.permuted(value, 5, "mod") for name, value in values.items()}
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), stored, OTHERS)

    spec = spec_of("Adagrad", "dict", "mod")

    checkpoints.convert(old, str(tmp_path / "new"), spec=spec, from_hosts=5)

    told = checkpoints.convert(old, str(tmp_path / "none"), spec=spec, dry_run=True)
    assert told.lines()[-1].startswith('note: partitioned by "mod", but stored without slices')
    found = legacy_checkpoints.read(str(tmp_path / "new"))
    assert_same(values, {name: found[key] for name, key in keys.items()})


# --- Finding tables -------------------------------------------------------------------------


def test_a_checkpoint_is_enough_for_column_tables(tmp_path: pathlib.Path) -> None:
    """Without a spec the tables of columns, in any scope, and their optimizer are found."""
    values = {
        "a/b/users_embedding/embedding_weights": np.ones([4, 2], np.float32),
        "a/b/users_embedding/embedding_weights/Ftrl": np.full([4, 2], 2, np.float32),
        "a/b/users_embedding/embedding_weights/Ftrl_1": np.full([4, 2], 3, np.float32),
    }
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS)

    made = checkpoints.convert(old, str(tmp_path / "new"))
    back = checkpoints.convert(str(tmp_path / "new"), str(tmp_path / "back"), like=old)

    found = legacy_checkpoints.read(str(tmp_path / "new"))
    assert np.all(found[f"embedding/tbl_users.Saccumulators{END}"] == 2)
    assert np.all(found[f"embedding/tbl_users.Slinears{END}"] == 3)
    assert "table 'tbl_users', linears" in made.lines()[2]
    assert len(back.moves) == len(values) + len(OTHERS)
    assert_same({**values, **OTHERS}, legacy_checkpoints.read(str(tmp_path / "back")))


def test_flags_name_tables(tmp_path: pathlib.Path) -> None:
    """Without a spec a table can be named, and its engine's name chosen."""
    values, _ = tables_of("Momentum", "dict")
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS)

    checkpoints.convert(
        old, str(tmp_path / "new"), tables={"people/x.y": "users", "few": "few"}, root="model/tower"
    )

    found = legacy_checkpoints.read(str(tmp_path / "new"))
    np.testing.assert_array_equal(
        values["users/Momentum"], found[f"model/tower/people.Sx..y.Smomenta{END}"]
    )


def test_tensorflow_finds_the_other_variables(tmp_path: pathlib.Path) -> None:
    """The step and the model's variables restore into objects, those below `variables` by name."""
    values, _ = tables_of("Adagrad", "dict")
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS)
    spec = spec_of("Adagrad", "dict")
    checkpoints.convert(old, str(tmp_path / "new"), spec=spec)

    step = tf.Variable(0, dtype=tf.int64)
    variables = {
        name: tf.Variable(np.zeros_like(value))
        for name, value in OTHERS.items()
        if name != "global_step"
    }
    root = tf.train.Checkpoint(embedding=engine_of(spec), global_step=step, variables=variables)
    root.restore(tf.train.latest_checkpoint(str(tmp_path / "new"))).assert_consumed()

    assert step.numpy() == 77
    assert root.save_counter.numpy() == 1
    assert tf.train.load_variable(str(tmp_path / "new"), f"save_counter{END}").shape == ()
    for name, variable in variables.items():
        np.testing.assert_array_equal(OTHERS[name], variable, err_msg=name)


def test_stocks_embedding_reads_a_converted_checkpoint(tmp_path: pathlib.Path) -> None:
    """Stock's TF2 TPUEmbedding restores what was converted, and what it saves converts back."""
    stock = tf.tpu.experimental.embedding
    values, _ = tables_of("Adam", "dict")
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS, 5, "mod")
    spec = spec_of("Adam", "dict", "mod")
    checkpoints.convert(old, str(tmp_path / "objects"), spec=spec)

    configs = [stock.TableConfig(rows, 4, name=name) for name, rows in (("users", 13), ("few", 3))]
    engine = stock.TPUEmbedding([stock.FeatureConfig(table) for table in configs], stock.Adam(0.1))
    engine.build()
    model = tf.Module()
    model.tables = engine
    latest = tf.train.latest_checkpoint(str(tmp_path / "objects"))
    tf.train.Checkpoint(embedding=engine).restore(latest).assert_existing_objects_matched()
    saved = tf.train.Checkpoint(model=model).save(str(tmp_path / "saved" / "ckpt"))
    checkpoints.convert(
        saved, str(tmp_path / "new"), spec=spec, to_hosts=5, global_step=5, to_partition="mod"
    )

    found = legacy_checkpoints.read(str(tmp_path / "new"))
    assert found.pop("global_step") == 5
    stored = {name: legacy_checkpoints.permuted(value, 5, "mod") for name, value in values.items()}
    assert_same(stored, found)


def test_a_table_may_be_named_like_a_slot(tmp_path: pathlib.Path) -> None:
    """A table whose name begins with that of another one is a table, and no stray of the other."""
    values = {
        name: np.full([3, 2], number, np.float32)
        for number, name in enumerate(["a", "a/Adagrad", "a/b", "a/b/Adagrad"])
    }
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS)

    checkpoints.convert(old, str(tmp_path / "new"), tables={"a": "a", "a/b": "a/b"})

    found = legacy_checkpoints.read(str(tmp_path / "new"))
    keys = ["a", "a.Saccumulators", "a.Sb", "a.Sb.Saccumulators"]
    assert_same(
        values, {n: found[f"embedding/{k}{END}"] for n, k in zip(values, keys, strict=True)}
    )


def test_of_two_embeddings_one_is_chosen(tmp_path: pathlib.Path) -> None:
    """Where a model has two embeddings, `root` says which; of the other nothing is known."""
    spec = spec_of("Adagrad", "dict")
    both = tf.Module()
    both.left, both.right = engine_of(spec), engine_of(spec)
    both.left.tables["users"].variables["parameters"][0].assign(tf.ones([13, 4]))
    step = tf.Variable(4, dtype=tf.int64)
    saved = tf.train.Checkpoint(both=both, global_step=step).save(str(tmp_path / "old" / "ckpt"))

    with pytest.raises(errors.InvalidInput, match=r"\['both/left', 'both/right'\]"):
        checkpoints.convert(saved, str(tmp_path / "new"), spec=spec)
    checkpoints.convert(
        saved, str(tmp_path / "new"), spec=spec, root="both/left", allow=["both/right/*"]
    )

    found = legacy_checkpoints.read(str(tmp_path / "new"))
    assert np.all(found["users"] == 1)
    assert set(found) == {"users", "users/Adagrad", "few", "few/Adagrad", "global_step"}


@settings(derandomize=True, max_examples=100, deadline=None)
@given(rows=st.integers(1, 40), hosts=st.integers(1, 45), strategy=st.sampled_from(["div", "mod"]))
def test_the_map_of_rows_is_that_of_the_hosts(rows: int, hosts: int, strategy: str) -> None:
    """Each stored row has the id that its host holds there, and each id its stored row."""
    layout = Layout(rows, hosts, strategy)
    ids = legacy_checkpoints.permuted(np.arange(rows), hosts, strategy)

    np.testing.assert_array_equal(layout.ids(np.arange(rows)), ids)
    np.testing.assert_array_equal(layout.stored(ids), np.arange(rows))
    assert sum(layout.part_rows) == rows
    assert len(layout.part_rows) == min(rows, hosts)


# --- What does not fit ----------------------------------------------------------------------


def old_checkpoint(
    tmp_path: pathlib.Path, without: str = "", optimizer: str = "Adagrad", **more: Any
) -> str:
    """Writes a checkpoint of the dict form without a variable, and with more; returns its path."""
    values, _ = tables_of(optimizer, "dict")
    held = {name: value for name, value in {**values, **more}.items() if name != without}
    return legacy_checkpoints.write(str(tmp_path / "old/m"), held, OTHERS)


def test_a_missing_slot_is_refused_unless_allowed(tmp_path: pathlib.Path) -> None:
    """A slot that is not there is named; allowed, it starts as the optimizer of the spec does."""
    old = old_checkpoint(tmp_path, without="few/Adagrad")
    spec = spec_of("Adagrad", "dict")

    with pytest.raises(errors.Unmatched, match="few/Adagrad: table 'few' has no such slot"):
        checkpoints.convert(old, str(tmp_path / "new"), spec=spec)
    assert not (tmp_path / "new").exists()
    made = checkpoints.convert(old, str(tmp_path / "new"), spec=spec, allow=["few/*"])

    found = legacy_checkpoints.read(str(tmp_path / "new"))
    np.testing.assert_array_equal(
        found[f"embedding/few.Saccumulators{END}"], np.full([3, 4], 0.25, np.float32)
    )
    assert made.lines()[-1] == "left out: few/Adagrad (table 'few' has no such slot)"


def test_what_belongs_to_a_table_is_not_carried_as_something_else(tmp_path: pathlib.Path) -> None:
    """The slots of another optimizer are named, not dropped and not carried."""
    extra = {"users/Adam": np.ones([13, 4], np.float32)}
    old = old_checkpoint(tmp_path, **extra)
    spec = spec_of("Adagrad", "dict")

    with pytest.raises(errors.Unmatched, match="users/Adam: it belongs to table 'users'"):
        checkpoints.convert(old, str(tmp_path / "new"), spec=spec)
    checkpoints.convert(old, str(tmp_path / "new"), spec=spec, allow=["users/Adam"])

    assert not any("Adam" in name for name in legacy_checkpoints.read(str(tmp_path / "new")) if
                   "users" in name)  # fmt: skip


def test_a_table_without_a_variable_is_named(tmp_path: pathlib.Path) -> None:
    """A table of the spec that the checkpoint lacks is named, with what has its shape."""
    old = old_checkpoint(tmp_path, without="few")

    with pytest.raises(errors.Unmatched, match=r"few: table 'few' has no variable .*few/Adagrad"):
        checkpoints.convert(old, str(tmp_path / "new"), spec=spec_of("Adagrad", "dict"))


def test_two_scopes_are_not_guessed(tmp_path: pathlib.Path) -> None:
    """Where two variables may be a column's table, both are named; a flag says which it is."""
    weights = np.ones([13, 4], np.float32)
    values = {
        "a/users_embedding/embedding_weights": weights,
        "b/users_embedding/embedding_weights": 2 * weights,
        "both": np.ones([3, 4], np.float32),
    }
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS)
    spec = spec_of("StochasticGradientDescent", "columns")

    with pytest.raises(errors.Unmatched, match=r"tbl_users.*a/users.*b/users"):
        checkpoints.convert(old, str(tmp_path / "new"), spec=spec)
    tables = {"tbl_users": "b/users_embedding/embedding_weights"}
    checkpoints.convert(old, str(tmp_path / "new"), spec=spec, tables=tables)

    found = legacy_checkpoints.read(str(tmp_path / "new"))
    assert np.all(found[f"embedding/tbl_users{END}"] == 2)


def test_another_vocabulary_is_refused(tmp_path: pathlib.Path) -> None:
    """A table of another size than the spec's is named, with both sizes."""
    old = old_checkpoint(tmp_path)
    spec = spec_of("Adagrad", "dict")
    spec.table_to_config_dict["users"] = OURS.TableConfig(14, 4)

    with pytest.raises(errors.InvalidInput, match=r"'users': the spec says \[14, 4\].*\[13, 4\]"):
        checkpoints.convert(old, str(tmp_path / "new"), spec=spec)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"from_hosts": 3}, "`from_hosts`=3, but the tables are stored in slices of 2"),
        ({"spec": None}, '"div" or "mod"'),
        ({"spec": None, "optimizer": "Adamant"}, "no optimizer 'Adamant'"),
        ({"to_partition": "row"}, "`to_partition` must be 'div' or 'mod', got 'row'"),
        ({"to": "names", "to_hosts": 0}, "`to_hosts` must be positive, got 0"),
        ({"to_hosts": 2}, "`to_hosts` are for name-based"),
        ({"slots": "gpu"}, "`slots` must be 'tpu' or 'cpu', got 'gpu'"),
        ({"to": "keras"}, "`to` must be 'names' or 'object', got 'keras'"),
        ({"tables": {"no": "users"}}, r"The spec has no table \['no'\]"),
        ({"rename": {"counts": "beta1_power"}}, "would be written twice"),
    ],
)
def test_options_that_do_not_fit_are_named(
    options: Mapping[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    """An option that contradicts the checkpoint, or means nothing, is named with its value."""
    values, _ = tables_of("Adagrad", "dict")
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS, 2, "mod")

    with pytest.raises(errors.EngineError, match=message):
        checkpoints.convert(
            old, str(tmp_path / "new"), **{"spec": spec_of("Adagrad", "dict", "mod"), **options}
        )
    assert not (tmp_path / "new").exists()


def test_an_engine_alone_needs_a_step_for_an_estimator(tmp_path: pathlib.Path) -> None:
    """An object checkpoint without a step is refused by name, and a step can be given."""
    spec = spec_of("Adagrad", "dict")
    saved = tf.train.Checkpoint(embedding=engine_of(spec)).save(str(tmp_path / "old" / "ckpt"))

    with pytest.raises(errors.Unmatched, match="global_step"):
        checkpoints.convert(saved, str(tmp_path / "new"), spec=spec)
    checkpoints.convert(saved, str(tmp_path / "new"), spec=spec, global_step=12)

    assert tf.train.latest_checkpoint(str(tmp_path / "new")).endswith("model.ckpt-12")
    assert tf.train.load_variable(str(tmp_path / "new"), "global_step") == 12


def test_objects_without_a_name_are_listed(tmp_path: pathlib.Path) -> None:
    """A variable of another object has no legacy name; it is named, and can be given one."""
    spec = spec_of("Adagrad", "dict")
    saved = tf.train.Checkpoint(
        embedding=engine_of(spec),
        global_step=tf.Variable(1, dtype=tf.int64),
        tower=tf.Module(),
        kernel=tf.Variable([1.0, 2.0]),
    ).save(str(tmp_path / "old" / "ckpt"))

    with pytest.raises(errors.Unmatched, match=f"kernel{END}: no variable"):
        checkpoints.convert(saved, str(tmp_path / "new"), spec=spec)
    checkpoints.convert(
        saved, str(tmp_path / "new"), spec=spec, rename={f"kernel{END}": "dense/kernel"}
    )

    np.testing.assert_array_equal(
        tf.train.load_variable(str(tmp_path / "new"), "dense/kernel"), [1.0, 2.0]
    )


def test_slots_of_two_optimizers_need_a_word(tmp_path: pathlib.Path) -> None:
    """Adagrad and ProximalAdagrad have one slot of one name in the engine; the user says which."""
    saved = tf.train.Checkpoint(embedding=engine_of(spec_of("Adagrad", "dict"))).save(
        str(tmp_path / "old" / "ckpt")
    )

    with pytest.raises(errors.InvalidInput, match=r"AdagradParameters.*ProximalAdagradParameters"):
        checkpoints.convert(saved, str(tmp_path / "new"), global_step=1)
    checkpoints.convert(saved, str(tmp_path / "new"), global_step=1, optimizer="ProximalAdagrad")

    assert "users/ProximalAdagrad" in legacy_checkpoints.read(str(tmp_path / "new"))


# --- How it is written ----------------------------------------------------------------------


def test_a_dry_run_writes_nothing(tmp_path: pathlib.Path) -> None:
    """A dry run returns the map, a line for each tensor, and leaves no trace."""
    values, keys = tables_of("Adagrad", "dict")
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS, 5, "mod")

    made = checkpoints.convert(
        old, str(tmp_path / "new"), spec=spec_of("Adagrad", "dict", "mod"), dry_run=True
    )

    assert os.listdir(tmp_path) == ["old"]
    assert len(made.lines()) == len(values) + len(OTHERS)
    assert (
        f"table 'few', accumulators: few/Adagrad -> {keys['few/Adagrad']}  float32[3, 4]  "
        "(mod on 5 hosts -> rows by id)"
    ) in made.lines()


def test_nothing_is_overwritten(tmp_path: pathlib.Path) -> None:
    """A directory with anything in it is left alone; an empty one is taken."""
    old = old_checkpoint(tmp_path)
    spec = spec_of("Adagrad", "dict")

    with pytest.raises(errors.InvalidInput, match="old exists"):
        checkpoints.convert(old, str(tmp_path / "old"), spec=spec)
    (tmp_path / "new").mkdir()
    checkpoints.convert(old, str(tmp_path / "new"), spec=spec)

    assert sorted(os.listdir(tmp_path / "new")) == [
        "checkpoint",
        "ckpt-77.data-00000-of-00001",
        "ckpt-77.index",
    ]


def test_progress_is_told(tmp_path: pathlib.Path) -> None:
    """Progress goes from nothing to everything in each of three passes."""
    told: list[tuple[str, int, int]] = []
    checkpoints.convert(
        old_checkpoint(tmp_path),
        str(tmp_path / "new"),
        spec=spec_of("Adagrad", "dict"),
        progress=lambda *what: told.append(what),
    )

    assert list(dict.fromkeys(doing for doing, _, _ in told)) == [
        "checking",
        "writing",
        "comparing",
    ]
    for doing in ("checking", "writing", "comparing"):
        steps = [(done, total) for what, done, total in told if what == doing]
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1] == steps[0][1] > 0


MEMORY = """
import sys
import numpy as np
import tensorflow as tf
from estimator_bridge import checkpoints

def peak():  # of this process alone; ru_maxrss is handed down by the parent
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) << 10

before = peak()
checkpoints.convert(sys.argv[1], sys.argv[2], tables={"big": "big"}, optimizer="SGD",
                    **eval(sys.argv[3]))
print(peak() - before)
"""


def convert_measured(old: str, new: pathlib.Path, **options: Any) -> int:
    """Converts in a process of its own; returns its peak of memory above `import tensorflow`."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, old, str(new), repr(options)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.parametrize("size", [160 << 20, 4 << 30], ids=["160 MB", "4 GB"])
def test_memory_does_not_grow_with_tables(size: int, tmp_path: pathlib.Path) -> None:
    """A table of any size, put in another order both ways, takes little memory.

    That is 300 MB, as promised, and less than the smaller table itself.
    """
    dim = 64
    rows = size // (4 * dim)
    counts = [len(part) for part in np.array_split(np.arange(rows), 5)]
    firsts = np.cumsum([0, *counts[:-1]]).tolist()

    def buffers() -> Iterator[tuple[int, bytes]]:
        for part, count in enumerate(counts):
            for row in range(0, count, 1 << 14):
                block = np.full([min(1 << 14, count - row), dim], row + part, np.float32)
                yield part, block.tobytes()

    old = str(tmp_path / "m")
    writer = Writer(old)
    sizes = {
        ((first, count), (0, dim)): 4 * dim * count
        for first, count in zip(firsts, counts, strict=True)
    }
    writer.tensor("big", np.float32, [rows, dim], sizes, buffers(), sliced=True)
    writer.value("global_step", np.int64(1))
    writer.finish()

    there = convert_measured(old, tmp_path / "objects", from_partition="mod")
    os.remove(f"{old}.data-00000-of-00001")  # room for the next
    back = convert_measured(
        str(tmp_path / "objects"), tmp_path / "new", to_hosts=3, to_partition="mod"
    )

    print(f"{size >> 20} MB: {there >> 20} MB there, {back >> 20} MB back")  # noqa: T201
    assert there < min(300 << 20, size * 3 // 4)
    assert back < min(300 << 20, size * 3 // 4)
