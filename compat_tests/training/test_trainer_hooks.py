"""`Trainer`: hooks, host calls, collections and lookup tables of a model_fn."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.programs import jobs
from compat_tests.training.trainers import (
    BATCH,
    NEAR,
    Watching,
    input_fn,
    make,
    minimized,
    model,
    values,
)
from tf2_engine import errors, training
from tf2_engine.summaries.events import scalars_by_step

v1 = tf.compat.v1


class Asking(v1.train.SessionRunHook):
    """A hook that looks the global step up wherever it needs it."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.seen.append(int(session.run(v1.train.get_global_step())))

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(v1.train.get_global_step())

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(int(run_values.results))
        self.seen.append(int(run_context.session.run(v1.train.get_global_step())) - 1)

    def end(self, session: Any) -> None:
        self.seen.append(int(session.run(v1.train.get_global_step())))


@pytest.mark.full
def test_hooks_run_as_far_as_they_need_no_session(tmp_path: pathlib.Path) -> None:
    """Hooks that need no session run, TensorFlow's among them; others are refused by name."""
    watching, of_model = Watching(last=4), Watching(last=99)
    stop = v1.train.StopAtStepHook(num_steps=6)
    trainer = make(model(minimized, training_hooks=[of_model]), tmp_path)
    trainer.train(input_fn, hooks=[watching, v1.train.NanTensorHook("mean_squared_error/value:0")])
    assert int(trainer.step.numpy()) == 4
    # A function is traced again once its variables exist, and each graph is begun.
    assert watching.calls == ["begin", "begin", "created at 0", "end"]
    assert watching.seen == of_model.seen == [0, 1, 2, 3]
    counter = v1.train.StepCounterHook(every_n_steps=2)
    trainer.train(input_fn, hooks=[stop, counter])
    assert int(trainer.step.numpy()) == 10

    asking = Asking()
    trainer.train(input_fn, hooks=[asking], steps=2)
    assert asking.seen == [10, 10, 10, 11, 11, 12]

    with pytest.raises(errors.InvalidInput, match="CheckpointSaverHook needs a session"):
        trainer.train(input_fn, [v1.train.CheckpointSaverHook(str(tmp_path), save_steps=1)])

    class Late(v1.train.SessionRunHook):
        asked = 0

        def before_run(self, run_context: Any) -> Any:
            self.asked += 1
            return v1.train.SessionRunArgs(tf.constant(1)) if self.asked > 1 else None

    with pytest.raises(errors.OutOfOrder, match=r"Late requests .* did not request before"):
        trainer.train(input_fn, [Late()], steps=2)


@pytest.mark.full
def test_files_are_those_of_an_estimator(tmp_path: pathlib.Path) -> None:
    """Event files have the loss, the rate and summaries; the config says what is kept."""
    folder = tmp_path / "model"

    def host(number: tf.Tensor) -> Any:
        with tf.summary.create_file_writer(str(tmp_path / "host")).as_default():
            tf.summary.scalar("number", number[0], step=v1.train.get_global_step())
            return v1.summary.all_v2_summary_ops()

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        spec = model(minimized)(features, labels, mode)
        if mode == training.ModeKeys.TRAIN:
            v1.summary.scalar("one", tf.constant(1.0))
            spec = spec._replace(host_call=(host, {"number": tf.constant([7.0])}))
        return spec

    every = {"save_summary_steps": 2, "log_step_count_steps": 3, "save_checkpoints_steps": 2}
    trainer = make(model_fn, folder, keep_checkpoint_max=2, **every)
    trainer.train(input_fn, max_steps=7)

    scalars = scalars_by_step(str(folder))
    assert {step for step, each in scalars.items() if "loss" in each} == {1, 2, 4, 6}
    assert {step for step, each in scalars.items() if each.get("one") == 1.0} == {1, 2, 4, 6}
    assert {step for step, each in scalars.items() if "global_step/sec" in each} == {3, 6}
    kept = {path.name for path in folder.glob("*.index")}
    assert kept == {"model.ckpt-6.index", "model.ckpt-7.index"}
    (file,) = (tmp_path / "host").iterdir()
    events = [event for event in v1.train.summary_iterator(str(file)) if event.summary.value]
    assert [event.step for event in events] == [*range(1, 8)]
    assert {float(tf.make_ndarray(each.summary.value[0].tensor)) for each in events} == {7.0}

    metrics = trainer.evaluate(input_fn, steps=2, name="test")
    (written,) = scalars_by_step(trainer.eval_dir("test")).items()
    assert trainer.eval_dir("test") == os.path.join(str(folder), "eval_test")
    assert written == (7, {"loss": pytest.approx(metrics["loss"]), "scale": metrics["scale"]})


def test_host_calls_run_in_every_mode_that_has_one(tmp_path: pathlib.Path) -> None:
    """As in a TPUEstimator, the host call of a spec runs after each step, whatever the mode."""
    calls: list[tuple[str, int, float]] = []

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        def host(number: tf.Tensor) -> Any:
            arguments = [mode, v1.train.get_global_step(), number[0]]
            return v1.py_func(lambda *seen: calls.append(seen), arguments, [])

        spec = model(minimized)(features, labels, mode)
        return spec._replace(host_call=(host, [tf.constant([7.0])]))

    trainer = make(model_fn, tmp_path / "model")
    trainer.train(input_fn, max_steps=2)
    trainer.evaluate(input_fn, steps=3)
    assert len([*trainer.predict(lambda params: input_fn(params).take(2))]) == 2 * BATCH

    seen = [(mode.decode(), step, number) for mode, step, number in calls]  # type: ignore[attr-defined]
    evaluated, predicted = [("eval", 2, 7.0)] * 3, [("infer", 2, 7.0)] * 2
    assert seen == [("train", 1, 7.0), ("train", 2, 7.0), *evaluated, *predicted]


class Collecting(v1.train.SessionRunHook):
    """A hook that keeps the names of the trainable variables, like one that logs their norm."""

    def begin(self) -> None:
        self.names = names_in(v1.GraphKeys.TRAINABLE_VARIABLES)


def names_in(collection: str) -> list[str]:
    return [each.name.partition(":")[0] for each in v1.get_collection(collection)]


def test_collections_hold_what_a_model_fn_has_used_so_far(tmp_path: pathlib.Path) -> None:
    """As in a graph, in each trace: a penalty of the first layer's weights has no others."""
    trainable, everything = v1.GraphKeys.TRAINABLE_VARIABLES, v1.GraphKeys.GLOBAL_VARIABLES
    seen: dict[str, list[list[str]]] = {}

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        def look(place: str, collection: str) -> None:
            names = [each for each in names_in(collection) if "dummy" not in each]
            seen.setdefault(place, []).append(names)

        net = v1.layers.dense(features["word"], 1, name="layer")
        net = tf.keras.layers.Dense(1, use_bias=False, name="of_keras")(net)
        look("first", trainable)
        net += v1.get_variable("own", [1], collections=[everything, "mine"])
        look("mine", "mine")
        net = v1.layers.batch_normalization(net, scale=False, name="norm")
        look("second", everything)
        loss = v1.losses.mean_squared_error(labels, net)
        train_op = training.minimize(v1.train.AdagradOptimizer(0.1), loss)
        look("last", trainable)
        return training.ModelSpec(mode, loss=loss, train_op=train_op)

    hook = Collecting()
    trainer = make(model_fn, tmp_path)
    trainer.train(input_fn, steps=1)
    trainer.train(input_fn, steps=1, hooks=[hook])
    trainer.evaluate(input_fn, steps=1)
    first = ["layer/kernel", "layer/bias", "of_keras/kernel"]
    last = [*first, "own", "norm/beta"]
    assert all(each == first for each in seen["first"])
    moving = ["norm/moving_mean", "norm/moving_variance"]
    assert all(each == ["global_step", *last, *moving] for each in seen["second"])
    assert all(each == last for each in seen["last"])
    assert all(each == ["own"] for each in seen["mine"])
    assert len(seen["first"]) >= 3
    assert [each for each in hook.names if "dummy" not in each] == last


def test_lookup_tables_of_a_model_fn_are_initialized(tmp_path: pathlib.Path) -> None:
    """As in a session, their initializers run once, although no result depends on them."""

    def model_fn(features: Any, mode: str) -> training.ModelSpec:
        pairs = tf.lookup.KeyValueTensorInitializer(["a", "b"], [2.0, 3.0])
        looked_up = tf.lookup.StaticHashTable(pairs, 5.0).lookup(features["word"])
        scale = v1.get_variable("scale", [], initializer=v1.ones_initializer())
        if mode == training.ModeKeys.PREDICT:
            return training.ModelSpec(mode, predictions={"y": looked_up * scale})
        loss = tf.reduce_sum(looked_up * scale)
        optimizer = v1.train.GradientDescentOptimizer(0.01)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return training.ModelSpec(mode, loss=loss, train_op=train_op)

    data = {"word": [["a", "b", "c"]]}
    trainer = training.Trainer(model_fn, str(tmp_path))
    trainer.train(lambda: tf.data.Dataset.from_tensor_slices(data).repeat(), max_steps=2)
    evaluated = trainer.evaluate(lambda: tf.data.Dataset.from_tensor_slices(data))
    watching = Watching(last=9)  # An evaluation may have hooks, and the next one none.
    hooked = trainer.evaluate(lambda: tf.data.Dataset.from_tensor_slices(data), hooks=[watching])
    assert watching.calls[-1] == "end"
    assert evaluated == hooked == trainer.evaluate(lambda: tf.data.Dataset.from_tensor_slices(data))
    predicted = [*trainer.predict(lambda: tf.data.Dataset.from_tensors({"word": ["b"]}))]

    # The gradient of the loss is the sum of the values, 10, in each of the two steps.
    assert evaluated["loss"] == pytest.approx(10 * (1 - 2 * 0.1), rel=NEAR)
    assert predicted[0]["y"] == pytest.approx(3 * (1 - 2 * 0.1), rel=NEAR)


class Running(v1.train.SessionRunHook):  # type: ignore[misc]
    """Asks for an op by its name."""

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs("bump")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Checks that there is no value, as of a session."""
        assert run_values.results is None


def test_what_evaluations_change_ends_with_them(tmp_path: pathlib.Path) -> None:
    """Assignments that a result waits for, or a hook asks for, last as long as one evaluation."""

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        settings = {"initializer": v1.zeros_initializer(), "trainable": False}
        waited_for = v1.get_variable("waited_for", [], **settings)
        of_hook = v1.get_variable("of_hook", [], **settings)
        local = v1.get_local_variable("local", [], initializer=v1.ones_initializer())
        tf.group(of_hook.assign_add(1.0), name="bump")
        net = v1.layers.dense(features["word"], 1)
        with tf.control_dependencies([waited_for.assign_add(1.0), local.assign_add(1.0)]):
            counted = tf.stack([waited_for.read_value(), of_hook, local.read_value()])
        loss = tf.reduce_mean(net) + 0.0 * tf.reduce_sum(counted)
        metrics = (lambda each: {"last": v1.metrics.mean(each)}, [counted])
        predictions = {"counted": tf.broadcast_to(counted, [BATCH, 3])}
        train_op = minimized(loss)
        return training.ModelSpec(mode, predictions, loss, train_op, metrics)

    trainer = make(model_fn, tmp_path)
    trainer.train(input_fn, max_steps=2)
    expected = values(trainer)
    assert (expected["waited_for"], expected["of_hook"]) == (2.0, 0.0)  # no hook of a training
    for _ in range(2):
        # The counters of two steps of training, and of the steps so far; local ones start at 1.
        seen = [each["counted"] for each in trainer.predict(input_fn)][::BATCH]
        np.testing.assert_array_equal([each[::2] for each in seen[:3]], [[3, 2], [4, 3], [5, 4]])
        assert {each[1] for each in seen} == {0.0}
        trainer.evaluate(input_fn, steps=3, hooks=[Running()])
        jobs.assert_equal(values(trainer), expected)
