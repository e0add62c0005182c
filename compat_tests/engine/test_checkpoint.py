"""Checkpoints of the engine: what stock reads and writes, slots, refusals and exports."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support import fresh
from compat_tests.support.engine_checkpoints import (
    EACH,
    ONE,
    PLACEMENTS,
    VOCABULARY,
    Placement,
    assert_same,
    export,
    fill,
    fill_theirs,
    numbers,
    ours,
    read,
    read_file,
    read_theirs,
    restore,
    save,
    stock,
    theirs,
)
from tf2_engine import errors

# --- Stock --------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer, placement", EACH)
def test_stock_reads_ours(optimizer: str, placement: Placement, tmp_path: pathlib.Path) -> None:
    """Stock finds all it looks for in a checkpoint of ours, before it is built and after."""
    engine = ours(optimizer, placement)
    filled = fill(engine)
    path = save(engine, tmp_path)

    after = theirs(optimizer)
    restore(after, path).assert_consumed()
    before = theirs(optimizer, build=False)
    status = restore(before, path)
    before.build()
    status.assert_consumed()

    assert_same(filled, read_theirs(after), "built before")
    assert_same(filled, read_theirs(before), "built after")


@pytest.mark.parametrize("optimizer, placement", EACH)
def test_we_read_stocks(optimizer: str, placement: Placement, tmp_path: pathlib.Path) -> None:
    """A checkpoint of stock's is all used by an engine of ours, before it is built and after."""
    engine = theirs(optimizer)
    filled = fill_theirs(engine)
    path = save(engine, tmp_path)

    after = ours(optimizer, placement)
    restore(after, path).assert_consumed()
    before = ours(optimizer, placement, build=False)
    status = restore(before, path)
    before.build_for([(2,)] * 3)
    status.assert_consumed()

    assert_same(filled, read(after), "built before")
    assert_same(filled, read(before), "built after")


@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
def test_stock_loads_its_tpu_after_it_restored_ours(
    built: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore of ours makes stock run its hook, which on a TPU copies the rows to the device."""
    path = save(ours(), tmp_path)
    engine = theirs(build=built)
    calls: list[Any] = []
    monkeypatch.setattr(stock.TPUEmbedding, "_load_variables", lambda self: calls.append(self))

    restore(engine, path)

    assert calls == [engine]


def sharded(values: Any, count: int, name: str) -> Any:
    """Creates the sharded variable in which stock keeps a table on several hosts, with values."""
    parts = [part for part in np.array_split(values, count) if len(part)]
    variables = [tf.Variable(part, name=f"{name}_{at}") for at, part in enumerate(parts)]
    return tf.__internal__.distribute.ShardedVariable(variables, name=name)


def tree(children: Mapping[str, Any]) -> Any:
    """Creates a trackable object with named children, as stock's TPUEmbedding has them."""
    node = tf.Module()
    for name, child in children.items():
        node._track_trackable(child, name)
    return node


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("hosts", [2, 4])
def test_slices_of_stocks_hosts_are_read_and_written(
    hosts: int, placement: Placement, tmp_path: pathlib.Path
) -> None:
    """Variables sharded as stock's on several hosts restore from ours, and we restore from them."""
    names = {
        (table, kind): table if kind == "parameters" else f"{table}/{kind}"
        for table in VOCABULARY
        for kind in ("parameters", "accumulators")
    }
    full = {name: sharded(numbers(*key), hosts, name) for key, name in names.items()}
    empty = {name: sharded(0 * numbers(*key), hosts, name) for key, name in names.items()}

    engine = ours("Adagrad", placement)
    restore(engine, save(tree(full), tmp_path / "stock")).assert_existing_objects_matched()
    filled = fill(ours("Adagrad"))
    assert_same(filled, read(engine), str(placement))
    restore(tree(empty), save(engine, tmp_path / "ours")).assert_existing_objects_matched()
    for (table, kind), name in names.items():
        np.testing.assert_array_equal(filled[table][kind], empty[name].numpy(), err_msg=name)


READER = """
import sys
import numpy as np, tensorflow as tf
stock = tf.tpu.experimental.embedding
users, items = stock.TableConfig(10, 4, name="us/ers.x"), stock.TableConfig(3, 2, name="items")
config = [stock.FeatureConfig(users), stock.FeatureConfig(items)]
for build_first in (True, False):
    engine = stock.TPUEmbedding(config, stock.Adagrad(0.1))
    if build_first:
        engine.build()
    status = tf.train.Checkpoint(embedding=engine).restore(sys.argv[1])
    engine.build()
    status.assert_existing_objects_matched()
    for table in (users, items):
        held = np.load(f"{sys.argv[2]}/{table.name[:5].replace('/', '_')}.npy")
        assert np.array_equal(held, engine.embedding_tables[table].numpy())
assert not [name for name in sys.modules if name.startswith("tf2_engine")]
print("READ")
"""


def test_a_process_without_us_reads_ours(tmp_path: pathlib.Path) -> None:
    """A process that imports TensorFlow alone restores a checkpoint of ours into stock's engine."""
    engine = ours("Adagrad", Placement(2, "div"))
    filled = fill(engine)
    for name, kinds in filled.items():
        np.save(tmp_path / f"{name[:5].replace('/', '_')}.npy", kinds["parameters"])

    done = fresh.code(READER, save(engine, tmp_path), tmp_path, cwd=tmp_path)

    assert "READ" in done.stdout, done.stderr[-2000:]


# --- Slots ----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_without_an_optimizer_there_are_no_slots(
    placement: Placement, tmp_path: pathlib.Path
) -> None:
    """An engine that only looks up reads the parameters of any checkpoint, and writes no slots.

    The slots of an engine that restores from it keep their initial values.
    """
    trained = ours("Adagrad")
    filled = {name: {"parameters": kinds["parameters"]} for name, kinds in fill(trained).items()}
    engine = ours(None, placement)

    restore(engine, save(trained, tmp_path / "trained")).assert_existing_objects_matched()
    path = save(engine, tmp_path / "serving")

    assert_same(filled, read(engine), str(placement))
    assert_same(filled, read_file(path), str(placement))
    restore(theirs(None), path).assert_consumed()
    again = ours("Adagrad", placement)
    restore(again, path).expect_partial()
    start = {name: read(ours("Adagrad"))[name]["accumulators"] for name in filled}
    with_slots = {name: {**kinds, "accumulators": start[name]} for name, kinds in filled.items()}
    assert_same(with_slots, read(again), str(placement))


# --- Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", [ONE, Placement(1, "mod"), Placement(2, "mod")], ids=str)
def test_a_table_of_another_size_is_refused_by_name(
    placement: Placement, tmp_path: pathlib.Path
) -> None:
    """A checkpoint of a table with more rows is refused, with the table's name and both shapes."""
    with pytest.raises(errors.InvalidInput, match=r"'us/ers.x'.*\[12, 4\].*\[10, 4\]"):
        restore(ours("SGD", placement), of_a_larger_table(tmp_path))


def test_slices_of_a_table_of_another_size_are_refused(tmp_path: pathlib.Path) -> None:
    """With "div" on several hosts TensorFlow refuses them, by key."""
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"us.Sers..x"):
        restore(ours("SGD", Placement(2, "div")), of_a_larger_table(tmp_path))


def of_a_larger_table(folder: pathlib.Path) -> str:
    """Writes a checkpoint of a table with 12 rows; returns its path."""
    of = [stock.FeatureConfig(stock.TableConfig(12, 4, name="us/ers.x"))]
    larger = tf2_engine.TPUEmbedding(of, tf2_engine.SGD(0.1))
    larger.build_for([(2,)])
    return save(larger, folder)


# --- SavedModel -----------------------------------------------------------------------------------


def test_the_variables_of_an_export_are_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """An engine on one host, and one of stock's, restore from the variables of a SavedModel."""
    engine = ours("SGD")
    filled = fill(engine)
    path = export(engine, tmp_path)

    for other, read_tables in ((ours("SGD"), read), (theirs("SGD"), read_theirs)):
        restore(other, path).expect_partial()
        assert_same(filled, read_tables(other))
