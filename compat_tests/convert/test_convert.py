"""Conversion of checkpoints: no number is lost between legacy programs and TF2."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases import every, pairwise
from compat_tests.support import legacy_checkpoints
from compat_tests.support.conversions import (
    CPU_SLOTS,
    DICT_ONLY,
    END,
    OPTIMIZERS,
    OTHERS,
    TABLES,
    TPU_SLOTS,
    assert_same,
    convert_and_read,
    engine_of,
    old_checkpoint,
    spec_of,
    tables_of,
)
from estimator_bridge import convert, errors

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


# --- Round trips ----------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_a_round_trip_loses_nothing(row: Mapping[str, Any], tmp_path: pathlib.Path) -> None:
    """Tensors are equal after names, objects, an engine, and names on other hosts in turn.

    TensorFlow restores all of the objects: the engine, the step and the model's variables.
    """
    optimizer, form = row["optimizer"], row["form"]
    values, keys = tables_of(optimizer, form)
    path = str(tmp_path / "old" / "model.ckpt-77")
    legacy_checkpoints.write(path, values, OTHERS, row["hosts"], row["strategy"])
    spec = spec_of(optimizer, form, row["strategy"])

    middle = convert_and_read(path, tmp_path / "objects", spec=spec)
    assert_same(values, {name: middle[key] for name, key in keys.items()})
    engine, step = engine_of(spec), tf.Variable(0, dtype=tf.int64)
    of_model = {name: value for name, value in OTHERS.items() if name != "global_step"}
    variables = {name: tf.Variable(np.zeros_like(value)) for name, value in of_model.items()}
    root = tf.train.Checkpoint(embedding=engine, global_step=step, variables=variables)
    root.restore(str(tmp_path / "objects/ckpt-77")).assert_consumed()
    assert (step.numpy(), root.save_counter.numpy()) == (77, 1)
    assert_same(of_model, {name: variable.numpy() for name, variable in variables.items()})
    for table, (variable, _) in TABLES[form].items():
        held = engine.tables[table].variables
        assert_same({variable: values[variable]}, {variable: held["parameters"][0].numpy()})
        for slot, suffix in TPU_SLOTS[optimizer].items():
            np.testing.assert_array_equal(values[f"{variable}/{suffix}"], held[slot][0])

    to_hosts, to_strategy = row["to_hosts"], row["to_strategy"]
    converted = convert_and_read(
        tmp_path / "objects",
        tmp_path / "new",
        spec=spec,
        to_hosts=to_hosts,
        to_partition=to_strategy,
        scope="dense_features",
    )
    for name in values:
        converted[name] = legacy_checkpoints.by_id(converted[name], to_hosts, to_strategy)
    assert_same({**values, **OTHERS}, converted)
    shapes = {name: value.shape for name, value in values.items()}
    path = str(tmp_path / "new/model.ckpt-77")
    for name, parts in legacy_checkpoints.read_parts(path, shapes, to_hosts).items():
        np.testing.assert_array_equal(
            np.concatenate(parts), legacy_checkpoints.permuted(values[name], to_hosts, to_strategy)
        )


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in DICT_ONLY])
def test_slots_of_cpu_programs(optimizer: str, tmp_path: pathlib.Path) -> None:
    """A checkpoint of TF1's optimizers is read, and written, by the names that they give slots."""
    values, keys = tables_of(optimizer, "columns", CPU_SLOTS)
    old = legacy_checkpoints.write(str(tmp_path / "old/model.ckpt-77"), values, OTHERS)
    spec = spec_of(optimizer, "columns")

    convert.convert(old, str(tmp_path / "objects"), spec=spec)
    convert.convert(
        str(tmp_path / "objects"), str(tmp_path / "new"), spec=spec, slots="cpu", like=old
    )

    middle = legacy_checkpoints.read(str(tmp_path / "objects"))
    assert_same(values, {name: middle[key] for name, key in keys.items()})
    assert_same({**values, **OTHERS}, legacy_checkpoints.read(str(tmp_path / "new")))


def test_a_cluster_has_small_tables_whole(tmp_path: pathlib.Path) -> None:
    """Parameter servers store a large table in their parts, and a small one in a single slice."""
    values, keys = tables_of()
    large = {name for name in values if name.startswith("users")}
    old = legacy_checkpoints.write(
        str(tmp_path / "old/m"), values, OTHERS, 2, "mod", whole=values.keys() - large
    )

    converted = convert_and_read(old, tmp_path / "new", spec=spec_of("Adagrad", "dict", "mod"))
    assert_same(values, {name: converted[key] for name, key in keys.items()})


def test_a_rewritten_mod_checkpoint_needs_the_hosts(tmp_path: pathlib.Path) -> None:
    """Rows by mod in a tensor without slices are put in order when the hosts are given.

    Without them one host is assumed, and that is said.
    """
    values, keys = tables_of()
    stored = {name: legacy_checkpoints.permuted(value, 5, "mod") for name, value in values.items()}
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), stored, OTHERS)

    spec = spec_of(strategy="mod")

    convert.convert(old, str(tmp_path / "new"), spec=spec, from_hosts=5)

    report = convert.convert(old, str(tmp_path / "none"), spec=spec, dry_run=True)
    assert report.lines()[-1].startswith(
        'note: the tables are partitioned by "mod" but stored without'
    )
    converted = legacy_checkpoints.read(str(tmp_path / "new"))
    assert_same(values, {name: converted[key] for name, key in keys.items()})


# --- Finding tables -------------------------------------------------------------------------


def test_stocks_embedding_reads_a_converted_checkpoint(tmp_path: pathlib.Path) -> None:
    """Stock's TF2 TPUEmbedding restores what was converted, and what it saves converts back."""
    stock = tf.tpu.experimental.embedding
    old, values = old_checkpoint(tmp_path, "Adam", hosts=5, strategy="mod")
    spec = spec_of("Adam", "dict", "mod")
    convert.convert(old, str(tmp_path / "objects"), spec=spec)

    configs = [stock.TableConfig(rows, 4, name=name) for name, rows in (("users", 13), ("few", 3))]
    engine = stock.TPUEmbedding([stock.FeatureConfig(table) for table in configs], stock.Adam(0.1))
    engine.build()
    model = tf.Module()
    model.tables = engine
    latest = tf.train.latest_checkpoint(str(tmp_path / "objects"))
    tf.train.Checkpoint(embedding=engine).restore(latest).assert_existing_objects_matched()
    saved = tf.train.Checkpoint(model=model).save(str(tmp_path / "saved" / "ckpt"))
    converted = convert_and_read(
        saved, tmp_path / "new", spec=spec, to_hosts=5, global_step=5, to_partition="mod"
    )
    assert converted.pop("global_step") == 5
    stored = {name: legacy_checkpoints.permuted(value, 5, "mod") for name, value in values.items()}
    assert_same(stored, converted)


def test_a_table_may_be_named_like_a_slot(tmp_path: pathlib.Path) -> None:
    """A table whose name begins with that of another one is a table, and no stray of the other."""
    values = {
        name: np.full([3, 2], number, np.float32)
        for number, name in enumerate(["a", "a/Adagrad", "a/b", "a/b/Adagrad"])
    }
    old = legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS)

    converted = convert_and_read(old, tmp_path / "new", tables={"a": "a", "a/b": "a/b"})
    keys = ["a", "a.Saccumulators", "a.Sb", "a.Sb.Saccumulators"]
    assert_same(
        values, {n: converted[f"embedding/{k}{END}"] for n, k in zip(values, keys, strict=True)}
    )


def test_of_two_embeddings_one_is_chosen(tmp_path: pathlib.Path) -> None:
    """Where a model has two embeddings, `root` says which; of the other nothing is known."""
    spec = spec_of()
    both = tf.Module()
    both.left, both.right = engine_of(spec), engine_of(spec)
    both.left.tables["users"].variables["parameters"][0].assign(tf.ones([13, 4]))
    step = tf.Variable(4, dtype=tf.int64)
    saved = tf.train.Checkpoint(both=both, global_step=step).save(str(tmp_path / "old" / "ckpt"))

    with pytest.raises(errors.InvalidInput, match=r"\['both/left', 'both/right'\]"):
        convert.convert(saved, str(tmp_path / "new"), spec=spec)
    converted = convert_and_read(
        saved, tmp_path / "new", spec=spec, root="both/left", allow=["both/right/*"]
    )
    assert np.all(converted["users"] == 1)
    assert set(converted) == {"users", "users/Adagrad", "few", "few/Adagrad", "global_step"}
