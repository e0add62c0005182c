"""Contents of the engine's checkpoints, on any number of hosts; exports and refusals.

test_checkpoint_beside_stock.py shows that keys, shapes and order of rows are stock's.
"""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support.engine_checkpoints import (
    ONE,
    PLACEMENTS,
    Placement,
    assert_same,
    export,
    fill,
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

# --- What is in a file ----------------------------------------------------------------------


# --- Other hosts ----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_rows_beyond_the_vocabulary_are_left_alone(strategy: str, tmp_path: pathlib.Path) -> None:
    """With more hosts than rows a restore leaves the rows of the padding as they were."""
    path = save(ours("SGD"), tmp_path)
    engine = ours("SGD", Placement(5, strategy))
    fill(engine)

    restore(engine, path).assert_consumed()

    padding = engine.tables["items"].variables["parameters"][3:]
    assert [shard.numpy().tolist() for shard in padding] == [[[-7.0, -7.0]]] * 2


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
