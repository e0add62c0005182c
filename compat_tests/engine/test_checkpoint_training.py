"""Checkpoints at any moment of training, with pending updates, in tf.functions and graphs."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support.engine_checkpoints import (
    ONE,
    OPTIMIZERS,
    VOCABULARY,
    Placement,
    Recorder,
    assert_same,
    export,
    fill,
    numbers,
    ours,
    read,
    read_file,
    restore,
    save,
)
from tf2_engine.backends import HostDriver
from tf2_engine.checkpoint import TableTensor

# --- Training goes on -------------------------------------------------------------------------


def features(step: int, cores: int = 1) -> Any:
    """Returns a batch of two samples per core, as a tf.Tensor for each of three features."""
    per_core = []
    for core in range(cores):
        ids = np.random.default_rng([step, core]).integers(0, 3, [3, 2])
        user, item, other = map(tf.constant, ids)
        per_core.append({"user": user + 5, "nested": {"item": item, "others": [other + 6]}})
    return per_core if cores > 1 else per_core[0]


def train(engine: Any, steps: range, cores: int = 1) -> None:
    """Runs some steps, whose gradients follow from the activations."""
    for step in steps:
        engine.enqueue(features(step, cores))
        activations = engine.dequeue()
        engine.apply_gradients(
            tf.nest.map_structure(lambda activation: tf.sin(activation) + 0.1, activations)
        )


@pytest.mark.parametrize("pipelined", [False, True], ids=["", "pipelined"])
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(name, marks=() if name == "Adagrad" else pytest.mark.full)
        for name in OPTIMIZERS
    ],
)
def test_training_goes_on_where_it_was(
    optimizer: str, pipelined: bool, tmp_path: pathlib.Path
) -> None:
    """Steps after a restore lead where they lead without one, to the bit, on other hosts too."""
    cores = 2
    first = ours(optimizer, Placement(2, "div"), pipelined=pipelined)
    train(first, range(3), cores)
    path = save(first, tmp_path)
    train(first, range(3, 6), cores)
    first.retrieve()

    for placement in (Placement(2, "mod"), Placement(1, "div")):
        second = ours(optimizer, placement, pipelined=pipelined, cores=cores)
        restore(second, path).assert_consumed()
        train(second, range(3, 6), cores)
        second.retrieve()

        assert_same(read(first), read(second), f"{optimizer}, {placement}")


def save_later(engine: Any, directory: pathlib.Path) -> str:
    """Writes asynchronous checkpoints, with steps between them; returns the last."""
    checkpoint = tf.train.Checkpoint(embedding=engine)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    for _ in range(2):  # the first save makes the copies, the second brings them up to date
        path = checkpoint.save(str(directory / "ckpt"), options)
        train(engine, range(7, 8))
    path = checkpoint.save(str(directory / "ckpt"), options)
    checkpoint.sync()
    return str(path)


@pytest.mark.parametrize("placement", [ONE, Placement(1, "mod")], ids=str)
@pytest.mark.parametrize("write", [save, save_later, export])
def test_a_checkpoint_holds_the_update_that_is_pending(
    write: Callable[..., str], placement: Placement, tmp_path: pathlib.Path
) -> None:
    """With pipelining the last update is pending; every way of saving applies it first."""
    engine = ours("Adagrad", placement, pipelined=True)
    train(engine, range(3))
    before = read(engine)

    saved = read_file(write(engine, tmp_path))

    engine.retrieve()
    wanted = read(engine)
    for name, kinds in saved.items():
        assert not np.array_equal(before[name]["parameters"], wanted[name]["parameters"])
        assert set(kinds) >= {"parameters"}
        for kind, values in kinds.items():
            np.testing.assert_array_equal(wanted[name][kind], values, err_msg=f"{name}, {kind}")


class Watched(HostDriver):
    """A driver that writes down which threads retrieve from it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[Any] = set()

    def retrieve(self, tables: Any) -> Any:
        self.threads.add(threading.current_thread())
        return super().retrieve(tables)


@pytest.mark.parametrize("placement", [Placement(2, "div"), Placement(2, "mod")], ids=str)
def test_steps_after_an_asynchronous_save_are_not_in_it(
    placement: Placement, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An asynchronous checkpoint holds what was there when it was asked for, however slow it is.

    What writes it leaves the engine alone.
    """
    read_now, main = TableTensor._read, threading.current_thread()

    def read_slowly(tensor: Any, shard: Any) -> Any:
        if threading.current_thread() is not main:
            time.sleep(0.03)
        return read_now(tensor, shard)

    monkeypatch.setattr(TableTensor, "_read", read_slowly)
    driver = Watched()
    engine = ours("Adagrad", placement, driver=driver)
    checkpoint = tf.train.Checkpoint(embedding=engine)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    for step in range(3):
        wanted = read(engine)
        path = checkpoint.save(str(tmp_path / "ckpt"), options)
        train(engine, range(step, step + 1), 2)
        checkpoint.sync()

        assert_same(wanted, read_file(path), f"step {step}")
    assert driver.threads == {main}


def test_the_driver_hears_of_saves_and_restores(tmp_path: pathlib.Path) -> None:
    """The tables are retrieved once before they are written, and loaded once all are restored.

    An engine that is not built has nothing to save, and loads what was restored when it is built.
    """
    driver = Recorder()
    engine = ours("Adagrad", driver=driver)
    fill(engine)
    driver.calls.clear()
    value = float(numbers("items", "parameters")[0, 0])

    path = save(engine, tmp_path)
    assert driver.calls == [("retrieve", value)]

    for shard in engine.tables["items"].variables["parameters"]:
        shard.assign(tf.zeros_like(shard))
    driver.calls.clear()
    restore(engine, path)
    assert driver.calls == [("load", value)]

    driver = Recorder()
    unbuilt = ours("Adagrad", driver=driver, build=False)
    assert read_file(save(unbuilt, tmp_path / "empty")) == {name: {} for name in VOCABULARY}
    restore(unbuilt, path)
    assert driver.calls == []
    unbuilt.build_for([(2,)] * 3)
    assert driver.calls == [("load", value)]


def test_the_first_batch_of_a_function_meets_what_was_restored(tmp_path: pathlib.Path) -> None:
    """An engine that is built while a tf.function is traced is restored then."""
    saved = ours("SGD", Placement(2, "mod"))
    fill(saved)
    engine = ours("SGD", build=False)
    status = restore(engine, save(saved, tmp_path))

    @tf.function
    def look_up(batch: Any) -> Any:
        engine.enqueue(batch, training=False)
        return engine.dequeue()

    activation = look_up(features(0))["nested"]["item"]

    ids = features(0)["nested"]["item"].numpy()
    np.testing.assert_array_equal(numbers("items", "parameters")[ids], activation)
    status.assert_consumed()


# --- tf.Graph -----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", [ONE, Placement(1, "mod")], ids=str)
def test_a_graph_saves_and_restores(placement: Placement, tmp_path: pathlib.Path) -> None:
    """In a tf.Graph a save applies the pending update first, and a restore drops it."""
    with tf.Graph().as_default(), tf.compat.v1.Session().as_default() as session:
        engine = ours("Adagrad", placement, pipelined=True)
        engine.enqueue(features(0))
        activations = engine.dequeue()
        step = engine.apply_gradients(tf.nest.map_structure(tf.ones_like, activations))
        variables = {
            name: {kind: shards[0] for kind, shards in table.variables.items()}
            for name, table in engine.tables.items()
        }
        bring = engine.retrieve()
        checkpoint = tf.compat.v1.train.Checkpoint(embedding=engine)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run([step, activations])
        before = session.run(variables)

        path = checkpoint.save(str(tmp_path / "ckpt"), session=session)
        after = session.run(variables)
        session.run([step, activations])
        checkpoint.restore(path).assert_consumed().run_restore_ops(session)
        session.run(bring)
        restored = session.run(variables)

    assert not np.array_equal(before["items"]["parameters"], after["items"]["parameters"])
    assert_same(after, read_file(path), "saved")
    assert_same(after, restored, "restored")
