"""`tf2_engine.training.Trainer`: what a model_fn may use, compared with formulas and files."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import errors, training
from tf2_engine.summaries.events import scalars_by_step

v1 = tf.compat.v1

BATCH, ROWS = 4, 10
RATE = 0.5
START = 0.5

# Of sums of some float32 numbers of order 1, in another order than here.
NEAR = 1e-6

Model = Callable[..., Any]
Arrays = dict[str, np.ndarray]


def embedding() -> training.Embedding:
    """Returns a table with a row for each of ten words."""
    of_tables = tf.tpu.experimental.embedding
    start = tf.constant_initializer(START)
    table = of_tables.TableConfig(ROWS, 2, start, of_tables.SGD(RATE), "sum", "words")
    return training.Embedding({"word": of_tables.FeatureConfig(table)})


def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
    """Returns a hundred batches of one word per sample."""
    assert params["batch_size"] == BATCH
    assert params["context"].current_input_fn_deployment()[2:] == (1, 1)

    def features(number: tf.Tensor) -> tuple[dict[str, Any], tf.Tensor]:
        where = [[sample, 0] for sample in range(BATCH)]
        ids = (number + tf.range(BATCH, dtype=tf.int64)) % ROWS
        return {"word": tf.SparseTensor(where, ids, [BATCH, 1])}, tf.ones([BATCH, 1])

    return tf.data.Dataset.range(100).map(features)


def make(model_fn: Model, folder: pathlib.Path, **settings: Any) -> training.Trainer:
    """Returns a trainer with `settings` in its config."""
    return training.Trainer(
        model_fn,
        config=training.RunConfig(str(folder), tf_random_seed=1, **settings),
        **{f"{mode}_batch_size": BATCH for mode in ("train", "eval", "predict")},
        embedding_config_spec=embedding(),
    )


def model(train: Callable[[Any], Any], regularizer: Any = None, **of_spec: Any) -> Model:
    """Returns a model_fn of a linear model that trains by a function of the loss."""

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        scale = v1.get_variable("scale", [1], initializer=v1.ones_initializer())
        net = v1.layers.dense(features["word"], 1, kernel_regularizer=regularizer) * scale
        if mode == training.ModeKeys.PREDICT:
            return training.ModelSpec(mode, predictions={"net": net})
        loss = v1.losses.mean_squared_error(labels, net)
        if mode == training.ModeKeys.EVAL:
            metrics = (lambda scale: {"scale": v1.metrics.mean(scale)}, [scale])
            return training.ModelSpec(mode, loss=loss, eval_metrics=metrics)
        return training.ModelSpec(mode, loss=loss, train_op=train(loss), **of_spec)

    return model_fn


def minimized(loss: tf.Tensor) -> Any:
    optimizer = v1.train.GradientDescentOptimizer(RATE)
    return training.minimize(optimizer, loss, v1.train.get_global_step())


def values(trainer: training.Trainer) -> Arrays:
    trainer.engine.retrieve()
    tables = trainer.engine.embedding_tables
    rows = {str(getattr(table, "name", table)): tables[table].numpy() for table in tables}
    return {**rows, **{name: each.numpy() for name, each in trainer.variables.items()}}


class Seen:
    """A callback that keeps the values at the start and after each step."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.steps: list[Arrays] = []

    def on_train_begin(self) -> None:
        self.steps.append(values(self.trainer))

    def on_train_batch_end(self, step: int) -> None:
        assert step == len(self.steps)
        self.steps.append(values(self.trainer))


def trained(folder: pathlib.Path, model_fn: Model, steps: int) -> list[Arrays]:
    """Returns the values at the start of a training and after each step."""
    seen = Seen()
    seen.trainer = make(model_fn, folder)
    seen.trainer.train(input_fn, max_steps=steps, callbacks=[seen])
    assert int(seen.trainer.step.numpy()) == steps
    return seen.steps


def change(steps: list[Arrays]) -> Arrays:
    return {name: steps[1][name] - steps[0][name] for name in steps[0]}


def test_clipping_reaches_the_model_and_not_the_tables(tmp_path: pathlib.Path) -> None:
    """Clipping limits the norm of the model's gradients, and leaves the tables alone."""
    norm = 0.125

    def clipped(loss: tf.Tensor) -> Any:
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        gradients, variables = zip(*training.compute_gradients(optimizer, loss), strict=True)
        gradients, _ = tf.clip_by_global_norm(gradients, norm)
        pairs = zip(gradients, variables, strict=True)
        # The step is counted once, whoever counts it.
        return optimizer.apply_gradients(pairs, global_step=v1.train.get_global_step())

    with_clipping = change(trained(tmp_path / "clipped", model(clipped), 2))
    without = change(trained(tmp_path / "free", model(minimized), 1))

    moved = [each.ravel() for name, each in with_clipping.items() if name != "words"]
    np.testing.assert_allclose(np.linalg.norm(np.concatenate(moved)), norm, rtol=NEAR)
    assert np.linalg.norm(without["dense/kernel"]) > norm
    np.testing.assert_array_equal(with_clipping["words"], without["words"])
    assert np.any(without["words"])


@pytest.mark.full
def test_ways_to_take_a_gradient_are_the_same(tmp_path: pathlib.Path) -> None:
    """`gradients`, and two optimizers with variables each, train as one `minimize` does."""

    def by_gradients(loss: tf.Tensor) -> Any:
        variables = v1.trainable_variables()
        optimizer = v1.train.GradientDescentOptimizer(RATE)
        pairs = zip(training.gradients(loss, variables), variables, strict=True)
        step = v1.train.get_global_step()
        return tf.group(optimizer.apply_gradients(pairs), step.assign(step + 1))

    def by_two(loss: tf.Tensor) -> Any:
        variables = v1.trainable_variables()
        kernels = [each for each in variables if "kernel" in each.name]
        others = [each for each in variables if "kernel" not in each.name]
        optimizers = [
            training.CrossShardOptimizer(v1.train.GradientDescentOptimizer(RATE)) for _ in range(2)
        ]
        pairs = zip(optimizers, (kernels, others), strict=True)
        return tf.group(*(training.minimize(one, loss, var_list=part) for one, part in pairs))

    def by_pairs(loss: tf.Tensor) -> Any:
        optimizer = v1.train.GradientDescentOptimizer(RATE)
        pairs = training.compute_gradients(optimizer, loss)
        assert [each for _, each in pairs] == v1.trainable_variables()
        return optimizer.apply_gradients([(each * 1.0, variable) for each, variable in pairs])

    expected = trained(tmp_path / "one", model(minimized), 3)
    for number, train in enumerate((by_gradients, by_two, by_pairs)):
        steps = trained(tmp_path / str(number), model(train), 3)
        assert steps[-1].keys() == expected[-1].keys()
        for name, value in expected[-1].items():
            np.testing.assert_array_equal(steps[-1][name], value, err_msg=name)


def only_the_model() -> list[Any]:
    """Returns the trainable variables without those that stand for tables."""
    return [each for each in v1.trainable_variables() if "dummy" not in each.name]


@pytest.mark.full
def test_two_losses_train_what_their_var_lists_name(tmp_path: pathlib.Path) -> None:
    """The table moves by the loss whose `var_list` has its dummy, twice as far by twice the loss.

    A loss that does not have it, the first one here, has no part in that.
    """

    def by_two(loss: tf.Tensor) -> Any:
        first, second = (v1.train.GradientDescentOptimizer(RATE) for _ in range(2))
        other = tf.square(loss)
        tables = [each for each in v1.trainable_variables() if "dummy" in each.name]
        return tf.group(
            training.minimize(first, other, var_list=only_the_model()),
            training.minimize(second, 2.0 * loss, var_list=tables),
        )

    expected = change(trained(tmp_path / "one", model(minimized), 1))["words"]
    seen = change(trained(tmp_path / "two", model(by_two), 1))["words"]
    assert np.any(expected)
    # Rows of less than 1 are rounded to 2^-25, once for either side, and one side is doubled.
    np.testing.assert_allclose(seen, 2.0 * expected, rtol=0.0, atol=3 * 2.0**-25)


@pytest.mark.full
def test_a_table_that_no_var_list_names_is_not_trained(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a TPUEstimator: zeros are sent, and a warning names the feature."""

    def few(loss: tf.Tensor) -> Any:
        optimizer = v1.train.GradientDescentOptimizer(RATE)
        return training.minimize(optimizer, loss, var_list=only_the_model())

    with caplog.at_level(logging.WARNING):
        seen = change(trained(tmp_path, model(few), 1))
    assert not np.any(seen["words"])
    assert np.any(seen["dense/kernel"])
    assert "Feature 'word': no loss has a gradient" in caplog.text


@pytest.mark.full
def test_a_model_of_tables_alone_trains(tmp_path: pathlib.Path) -> None:
    """With Adam, too: nothing is kept for a table's dummy in checkpoints."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> training.ModelSpec:
        net = tf.reduce_sum(features["word"], 1, keepdims=True)
        loss = v1.losses.mean_squared_error(3.0 * labels, net)
        optimizer = v1.train.AdamOptimizer(RATE)
        if params["batch_size"] and apart:
            pairs = training.compute_gradients(optimizer, loss)
            train_op = optimizer.apply_gradients(pairs)
        else:
            train_op = training.minimize(optimizer, loss)
        return training.ModelSpec(mode, loss=loss, train_op=train_op)

    for apart in (False, True):
        seen = trained(tmp_path / str(apart), model_fn, 1)
        assert np.any(change(seen)["words"])
        assert not [name for name in seen[-1] if "dummy" in name]


@pytest.mark.full
def test_a_trainer_works_within_a_graph(tmp_path: pathlib.Path) -> None:
    """`with tf.Graph().as_default()` around it changes nothing, and stays what it was."""
    with tf.Graph().as_default() as graph:
        trainer = make(model(minimized), tmp_path / "in")
        trainer.train(input_fn, max_steps=2)
        results = trainer.evaluate(input_fn, steps=2)
        predictions = trainer.predict(input_fn)
        net = next(predictions)["net"]
        assert tf.compat.v1.get_default_graph() is graph
        assert not tf.executing_eagerly()
        assert not graph.get_operations()
    other = make(model(minimized), tmp_path / "out")
    other.train(input_fn, max_steps=2)
    assert other.evaluate(input_fn, steps=2) == results
    np.testing.assert_array_equal(next(other.predict(input_fn))["net"], net)


@pytest.mark.full
def test_a_table_that_two_losses_train_is_refused(tmp_path: pathlib.Path) -> None:
    """The error names the feature, and says how to have one loss."""
    trainer = make(model(lambda loss: (minimized(loss), minimized(2 * loss))), tmp_path)
    with pytest.raises(
        errors.InvalidInput, match=r"Feature 'word': .*Differentiate the sum of the losses, or"
    ):
        trainer.train(input_fn, steps=1)
    trainer = make(model(lambda loss: loss), tmp_path)
    with pytest.raises(errors.InvalidInput, match=r"computes no gradient that trains a table"):
        trainer.train(input_fn, steps=1)


@pytest.mark.full
@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_a_model_dir_that_is_a_file_is_refused(method: str, tmp_path: pathlib.Path) -> None:
    """A model_dir that nothing can be written to is refused before the input is read."""
    (tmp_path / "file").write_text("")
    trainer = make(model(minimized), tmp_path / "file" / "job")

    def unread() -> Any:
        raise AssertionError("The input is read.")

    with pytest.raises(errors.CannotWrite, match="/file is not a directory"):
        getattr(trainer, method)(unread, steps=1)


def test_averages_follow_the_formula(tmp_path: pathlib.Path) -> None:
    """After each update average += (1 - decay) * (variable - average); evaluations may use them."""
    decay = 0.75
    averages: list[training.ExponentialMovingAverage] = []

    def averaged(loss: tf.Tensor) -> Any:
        averages.append(
            training.ExponentialMovingAverage(decay, num_updates=v1.train.get_global_step())
        )
        with tf.control_dependencies([minimized(loss)]):
            return averages[-1].apply(v1.trainable_variables())

    steps = trained(tmp_path, model(averaged), 8)
    names = [name for name in steps[0] if f"{name}/ExponentialMovingAverage" in steps[0]]
    assert sorted(names) == ["dense/bias", "dense/kernel", "scale"]
    for name in names:
        expected = steps[0][name]
        # The averages wait for the train_op, so they read the step that it has counted.
        for number, step in enumerate(steps[1:], 1):
            used = min(decay, (1 + number) / (10 + number))
            expected = expected + (1 - used) * (step[name] - expected)
            average = step[f"{name}/ExponentialMovingAverage"]
            np.testing.assert_allclose(average, expected, rtol=0, atol=NEAR)

    inner = model(averaged)

    def evaluated(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        spec = inner(features, labels, mode)
        average = training.ExponentialMovingAverage(decay)
        saver = training.Saver(average.variables_to_restore())

        def scaffold() -> training.Scaffold:
            assert v1.trainable_variables()[0] not in v1.trainable_variables()[1:]
            return training.Scaffold(saver=saver)

        return spec._replace(scaffold_fn=scaffold)

    trainer = make(evaluated, tmp_path)
    scale = trainer.evaluate(input_fn, steps=1)["scale"]
    np.testing.assert_allclose(scale, steps[-1]["scale/ExponentialMovingAverage"][0], rtol=NEAR)
    assert abs(scale - steps[-1]["scale"][0]) > 1000 * NEAR
    np.testing.assert_array_equal(trainer.variables["scale"].numpy(), steps[-1]["scale"])


@pytest.mark.full
def test_regularization_losses_are_those_of_each_variable(tmp_path: pathlib.Path) -> None:
    """Those of layers, variables, scopes and activities, and added ones, count in each trace."""
    losses_of_traces: list[list[Any]] = []

    def regularized(loss: tf.Tensor) -> Any:
        v1.get_variable("own", [3], initializer=v1.ones_initializer(), regularizer=tf.nn.l2_loss)
        with v1.variable_scope("scope", regularizer=tf.nn.l2_loss):
            v1.get_variable("inner", [2], initializer=v1.ones_initializer())
            settings = {"use_bias": False, "kernel_initializer": v1.ones_initializer()}
            for _ in range(2):  # A variable that is used twice counts once.
                both = v1.layers.Dense(
                    1,
                    **settings,
                    kernel_regularizer=tf.keras.regularizers.l2(2.0),
                    name="both",
                    _reuse=v1.AUTO_REUSE,
                )
                both(tf.ones([4, 2]))
        v1.layers.dense(tf.ones([4, 2]), 1, activity_regularizer=tf.keras.regularizers.l2(0.5))
        v1.losses.add_loss(tf.constant(3.0), v1.GraphKeys.REGULARIZATION_LOSSES)
        with v1.name_scope("scope"):
            added = tf.constant(4.0, name="added")
        v1.add_to_collection(v1.GraphKeys.REGULARIZATION_LOSSES, added)
        losses = training.get_regularization_losses()
        assert losses[-1] is added
        losses_of_traces.append(losses)
        assert len(training.get_regularization_losses("scope")) == 4
        return minimized(loss + training.get_regularization_loss())

    steps = trained(tmp_path, model(regularized, tf.keras.regularizers.l2(0.25)), 1)
    # l2_loss of three ones is 1.5, its gradient is the variable.
    moved = change(steps)
    np.testing.assert_allclose(moved["own"], -RATE * np.ones(3), rtol=NEAR)
    np.testing.assert_allclose(moved["scope/inner"], -RATE * np.ones(2), rtol=NEAR)
    # The scope's l2_loss has the gradient 1, the layer's l2 with 2.0 the gradient 4.
    np.testing.assert_allclose(moved["scope/both/kernel"], -RATE * 5 * np.ones([2, 1]), rtol=NEAR)
    free = change(trained(tmp_path / "free", model(minimized), 1))
    np.testing.assert_allclose(
        moved["dense/kernel"] - free["dense/kernel"],
        -RATE * 0.5 * steps[0]["dense/kernel"],
        rtol=0,
        atol=NEAR,
    )
    assert {len(losses) for losses in losses_of_traces} == {8}


class Watching(v1.train.SessionRunHook):
    """A hook that keeps what it asks for, and stops at a step."""

    def __init__(self, last: int) -> None:
        self.calls: list[str] = []
        self.seen: list[Any] = []
        self._last = last

    def begin(self) -> None:
        self._step = v1.train.get_global_step()
        self.calls.append("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append(f"created at {session.run(self._step)}")

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs({"step": self._step})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(int(run_values.results["step"]))
        if self.seen[-1] + 1 == self._last:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self.calls.append("end")


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


@pytest.mark.full
def test_evaluations_of_other_checkpoints_change_no_training(tmp_path: pathlib.Path) -> None:
    """An older checkpoint is evaluated as it was; training goes on from the latest one."""
    trainer = make(model(minimized), tmp_path / "one", save_checkpoints_steps=2)
    trainer.train(input_fn, max_steps=4)
    latest = values(trainer)
    older = trainer.evaluate(input_fn, 1, checkpoint_path=str(tmp_path / "one/model.ckpt-2"))
    assert older["global_step"] == 2
    assert older["scale"] != latest["scale"][0]
    next(trainer.predict(input_fn, checkpoint_path=str(tmp_path / "one/model.ckpt-2")))
    assert trainer.evaluate(input_fn, steps=1)["scale"] == latest["scale"][0]
    assert trainer.get_variable_value("scale")[0] == latest["scale"][0]
    names = trainer.get_variable_names()
    assert {"scale", "dense/kernel", "words", "global_step"} <= set(names)
    assert trainer.get_variable_value("global_step") == 4
    assert all(trainer.get_variable_value(name) is not None for name in names)
    np.testing.assert_array_equal(trainer.get_variable_value("words"), latest["words"])

    # Another process trains on.
    make(model(minimized), tmp_path / "one").train(input_fn, max_steps=5)
    assert trainer.evaluate(input_fn, steps=1)["global_step"] == 5
    trainer.train(input_fn, steps=1)
    assert int(trainer.step.numpy()) == 6


def writing_model(features: Any, labels: Any, mode: str) -> training.ModelSpec:
    """Has everything that writes variables in every mode; only a training returns it."""
    counter = v1.get_variable("counter", [], initializer=v1.zeros_initializer(), trainable=False)
    ops = [v1.assign_add(counter, 1.0)]
    net = v1.layers.batch_normalization(features["word"], training=True, name="norm")
    positive = tf.reduce_mean(net) > -1.0
    two, three = (lambda: v1.assign_add(counter, 2.0)), (lambda: v1.assign(counter, 3.0))
    ops.append(v1.cond(positive, two, three))
    net = v1.layers.dense(net + features["word"], 2, name="dense")
    v1.metrics.mean(net)
    net = v1.layers.dense(net, 1, name="out")
    labels = tf.ones_like(net) if labels is None else labels
    loss = v1.losses.mean_squared_error(labels, net)
    momentum, adam = v1.train.MomentumOptimizer(RATE, 0.9), v1.train.AdamOptimizer(RATE)
    trained = [each for each in v1.trainable_variables() if "dense" in each.name]
    others = [each for each in v1.trainable_variables() if "dense" not in each.name]
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        pairs = training.compute_gradients(adam, loss, others)
        ops += [training.minimize(momentum, loss, None, trained), adam.apply_gradients(pairs)]
    ops.append(training.ExponentialMovingAverage(0.9).apply(trained))
    ops.append(v1.assign_add(v1.train.get_global_step(), 1))
    by_input = v1.gradients(loss, features["word"])[0]
    counters = tf.fill([BATCH], counter)
    metrics = (lambda counters: {"counter": v1.metrics.mean(counters)}, [counters])
    return training.ModelSpec(
        mode,
        {"net": net, "by_input": by_input, "counter": counters},
        loss,
        tf.group(*ops),
        metrics,
    )


def test_evaluations_and_predictions_run_only_what_they_return(tmp_path: pathlib.Path) -> None:
    """A train_op, updates and assignments that a model_fn makes in every mode change nothing."""
    trainer = make(writing_model, tmp_path)
    trainer.train(input_fn, max_steps=3)
    expected = values(trainer)
    assert expected["counter"] == 9.0  # of each step an assign_add of 1 and one of 2
    assert {"norm/moving_mean", "dense/kernel/Momentum", "out/kernel/Adam"} <= set(expected)
    assert "mean/total" not in expected  # a local variable
    first = trainer.evaluate(input_fn, steps=3)
    predicted = next(trainer.predict(input_fn))
    assert first["counter"] == predicted["counter"] == 9.0
    assert np.any(predicted["by_input"])
    assert trainer.evaluate(input_fn, steps=3) == first
    for name, value in values(trainer).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)

    # Where the evaluation creates the variables.
    another = make(writing_model, tmp_path)
    assert another.evaluate(input_fn, steps=3) == first
    assert int(another.train(input_fn, steps=1).step.numpy()) == 4


def test_a_step_runs_what_the_returned_train_op_needs(tmp_path: pathlib.Path) -> None:
    """Another train_op, assignments and assertions that nothing returns do not run."""

    def choosing(features: Any, labels: Any) -> training.ModelSpec:
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        counts = v1.get_variable("counts", [2], initializer=v1.zeros_initializer(), trainable=False)
        loss = weight + 0.0 * tf.reduce_sum(features["word"])
        training.minimize(v1.train.GradientDescentOptimizer(100.0), loss)
        v1.assign_add(counts, [1.0, 0.0])
        tf.debugging.assert_negative(tf.abs(weight))
        with tf.control_dependencies([v1.assign_add(counts, [0.0, 1.0])]):
            train_op = training.minimize(v1.train.GradientDescentOptimizer(0.5), loss)
        v1.assign(weight, 7.0)
        return training.ModelSpec("train", loss=loss, train_op=train_op)

    trained = values(make(choosing, tmp_path).train(input_fn, steps=3))
    assert trained["weight"] == -1.5
    np.testing.assert_array_equal(trained["counts"], [0.0, 3.0])


def test_reads_that_wait_for_no_update_see_the_variables_before_the_step(
    tmp_path: pathlib.Path,
) -> None:
    """As in a session, whose reads start at once; a control dependency makes a read wait."""

    def reading(features: Any, labels: Any) -> training.ModelSpec:
        weight = v1.get_variable("weight", [], initializer=v1.ones_initializer())
        with v1.variable_scope("normed", regularizer=lambda each: tf.reduce_sum(each)):
            net = v1.layers.batch_normalization(features["word"], training=True, momentum=0.0)
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        train_op = training.minimize(v1.train.GradientDescentOptimizer(0.5), weight)
        with tf.control_dependencies([train_op]):
            late = tf.identity(weight)
        loss = training.get_regularization_loss() + 100.0 * weight + 1000.0 * late
        loss += 0.0 * tf.reduce_sum(net)
        return training.ModelSpec("train", loss=loss, train_op=tf.group(train_op, *updates))

    losses: list[float] = []

    class Losses(v1.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs(loss_of_step)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            losses.append(float(run_values.results))

    def model_fn(features: Any, labels: Any) -> training.ModelSpec:
        nonlocal loss_of_step
        spec = reading(features, labels)
        loss_of_step = spec.loss
        return spec

    loss_of_step: Any = None
    seen = values(make(model_fn, tmp_path).train(input_fn, hooks=[Losses()], steps=2))
    # Of two columns: gamma 1 and moving variance 1 at first, beta and moving mean 0. All rows of
    # the table are equal, so that the first step's variance is 0 and its mean START.
    assert losses == [4.0 + 100.0 + 500.0, 2.0 + 2 * START + 50.0 + 0.0]
    assert seen["weight"] == 0.0


def test_regularizers_are_those_of_the_mode(tmp_path: pathlib.Path) -> None:
    """As in a graph: a model_fn may regularize in training alone, or with another factor."""

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        trains = mode == training.ModeKeys.TRAIN
        l2 = tf.keras.regularizers.l2(1.0 if trains else 0.25)
        ones = {"initializer": v1.ones_initializer(), "trainable": False}
        v1.get_variable("always", [4], regularizer=l2, **ones)
        with v1.variable_scope("scope", regularizer=l2 if trains else None):
            v1.get_variable("inner", [2], **ones)
        layer = v1.layers.Dense(
            1,
            use_bias=False,
            kernel_initializer=v1.ones_initializer(),
            kernel_regularizer=None if trains else l2,
            trainable=False,
            name="layer",
        )
        layer(tf.ones([BATCH, 8]))
        losses = training.get_regularization_losses()
        factor = v1.get_variable("factor", [], initializer=v1.ones_initializer())
        loss = tf.add_n(losses) * factor + 0.0 * tf.reduce_sum(features["word"])
        return training.ModelSpec(mode, loss=loss, train_op=minimized(loss))

    trainer = make(model_fn, tmp_path)
    for _ in range(2):
        before = trainer.variables["factor"].numpy() if trainer.variables else 1.0
        trainer.train(input_fn, steps=1)
        after = trainer.variables["factor"].numpy()
        # The losses of the four and the two ones; in evaluations of the four and the layer's eight.
        assert before - after == RATE * 6.0
        assert trainer.evaluate(input_fn, steps=1)["loss"] == 0.25 * 12.0 * after


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


def seeded_layers(net: tf.Tensor) -> tf.Tensor:
    """Makes layers and variables of which two each have a seed."""
    shared = v1.random_normal_initializer(seed=5)
    for name in ("first", "second"):
        net = v1.layers.dense(net, 2, kernel_initializer=shared, name=f"{name}_shared")
        own = v1.glorot_uniform_initializer(seed=7)
        net = v1.layers.dense(net, 2, kernel_initializer=own, name=f"{name}_own")
        of_keras = v1.keras.initializers.he_normal(seed=4)
        net = v1.keras.layers.Dense(2, kernel_initializer=of_keras, name=f"{name}_keras")(net)
        start = v1.truncated_normal_initializer(seed=3)
        net = net @ v1.get_variable(f"{name}_variable", [2, 2], initializer=start)
    return net


@pytest.mark.parametrize("kind", ["sparse", "parsed"])
def test_a_batch_of_fixed_size_has_it_in_the_shapes_of_activations(
    kind: str, tmp_path: pathlib.Path
) -> None:
    """As on a TPU; if the last batch may be smaller, the size of a batch is unknown."""
    found: list[int | None] = []

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        scale = v1.get_variable("scale", [], initializer=v1.initializers.ones())
        found.append(features["word"].shape[0])
        loss = 0.1 * scale * tf.reduce_sum(features["word"])
        return training.ModelSpec(mode, loss=loss, train_op=minimized(loss))

    def batches(drop_remainder: bool) -> Callable[[Any], tf.data.Dataset]:
        def parsed(ids: tf.Tensor) -> tuple[dict[str, Any], tf.Tensor]:
            word = tf.sparse.from_dense(ids)
            if kind == "parsed":  # Parsed Examples have a shape that is unknown.
                shape = tf.numpy_function(lambda shape: shape, [word.dense_shape], tf.int64)
                word = tf.SparseTensor(word.indices, word.values, tf.ensure_shape(shape, [2]))
            return {"word": word}, tf.ones_like(ids)

        words = tf.data.Dataset.range(1, 9).map(lambda number: number[tf.newaxis])
        return lambda params: words.batch(BATCH, drop_remainder=drop_remainder).map(parsed)

    make(model_fn, tmp_path / "fixed").train(batches(True), max_steps=2)
    assert {*found} == {BATCH}
    found.clear()
    make(model_fn, tmp_path / "any").train(batches(False), max_steps=2)
    assert {*found} == {None}


def test_each_mode_says_which_variables_are_trained(tmp_path: pathlib.Path) -> None:
    """As in graphs, `trainable=mode == TRAIN` counts in every call, in whatever order they come."""
    found: dict[str, list[str]] = {}

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        is_training = mode == training.ModeKeys.TRAIN
        one = v1.initializers.ones()
        scale = v1.get_variable("scale", [2], initializer=one, trainable=is_training)
        kept = v1.get_variable("kept", [2], initializer=one, trainable=not is_training)
        loss = 0.1 * tf.reduce_sum(features["word"] * scale * kept)
        found[mode] = [each.name for each in v1.trainable_variables() if "words" not in each.name]
        train_op = minimized(loss) if is_training else None
        return training.ModelSpec(mode, loss=loss, train_op=train_op)

    make(model_fn, tmp_path).train(input_fn, max_steps=1)
    trainer = make(model_fn, tmp_path)
    trainer.evaluate(input_fn, steps=1)
    before = values(trainer)
    trainer.train(input_fn, steps=1)
    after = values(trainer)

    assert (found["train"], found["eval"]) == (["scale:0"], ["kept:0"])
    assert not np.array_equal(before["scale"], after["scale"])
    np.testing.assert_array_equal(before["kept"], [1.0, 1.0])
    np.testing.assert_array_equal(after["kept"], [1.0, 1.0])


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


def test_initial_values_of_one_seed_are_those_of_a_graph(tmp_path: pathlib.Path) -> None:
    """Variables that share a seed start alike, and as in the session of a legacy program."""

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        loss = tf.reduce_mean(seeded_layers(features["word"]))
        optimizer = v1.train.GradientDescentOptimizer(0.0)
        return training.ModelSpec(mode, loss=loss, train_op=training.minimize(optimizer, loss))

    started = trained(tmp_path, model_fn, 1)[0]
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        seeded_layers(tf.ones([BATCH, 2]))
        session.run(v1.global_variables_initializer())
        expected = {each.op.name: session.run(each) for each in v1.global_variables()}
    assert len(expected) == 14
    for name, value in expected.items():
        np.testing.assert_array_equal(started[name], value, err_msg=name)


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
        for name, value in values(trainer).items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


class Exporter:
    """Keeps what it is called with."""

    name = "kept"

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []

    def export(self, estimator: Any, path: str, checkpoint: str, result: Any, final: bool) -> int:
        assert path.endswith("/export/kept")
        assert checkpoint.endswith(f"-{result['global_step']}")
        self.calls.append((result["global_step"], final))
        return len(self.calls)


@pytest.mark.full
def test_training_stops_early_and_exports(tmp_path: pathlib.Path) -> None:
    """Each checkpoint is evaluated and exported; training ends when the metric is stuck."""
    trainer = make(model(minimized), tmp_path, save_checkpoints_steps=2)
    every = {"run_every_secs": None, "run_every_steps": 1}
    higher = training.stop_if_higher_hook(trainer, "loss", -1.0, min_steps=6, **every)
    exporter = Exporter()
    last, exported = training.train_and_evaluate(
        trainer,
        training.TrainSpec(input_fn, max_steps=50, hooks=[higher]),
        training.EvalSpec(input_fn, steps=1, exporters=exporter),
    )
    # Callbacks come before the checkpoint of a step.
    assert last["global_step"] == 7
    assert exporter.calls == [(2, False), (4, False), (6, False), (7, False), (7, True)]
    assert exported == [5]

    stuck = training.stop_if_no_increase_hook(trainer, "loss", 4, **every)
    trainer.train(input_fn, hooks=[stuck], steps=50)
    assert int(trainer.step.numpy()) == 8
    with pytest.raises(errors.MissingMetric, match="has no metric 'auc', only"):
        trainer.train(input_fn, [training.stop_if_lower_hook(trainer, "auc", 1.0, **every)], 3)


@pytest.mark.full
def test_exports_need_nothing_but_tensorflow(tmp_path: pathlib.Path) -> None:
    """A SavedModel answers as `predict`, and has files beside it."""
    trainer = make(model(minimized), tmp_path)
    trainer.train(input_fn, steps=2)
    extra = tmp_path / "extra.txt"
    extra.write_text("beside")

    class Receiver:
        def __init__(self) -> None:
            word = v1.placeholder(tf.int64, [None, 1])
            self.features, self.receiver_tensors = {"word": word}, {"word": word}

    path = trainer.export_saved_model(
        str(tmp_path / "export"), Receiver, assets_extra={"notes/extra.txt": str(extra)}
    ).decode()
    assert (pathlib.Path(path) / "assets.extra/notes/extra.txt").read_text() == "beside"
    served = tf.saved_model.load(path).signatures["serving_default"](
        tf.constant([[2], [3]], tf.int64)
    )
    predicted = [next(trainer.predict(input_fn, ["net"]))]
    assert predicted[0]["net"].shape == (1,)
    words, variables = values(trainer)["words"], values(trainer)
    expected = (words[[2, 3]] @ variables["dense/kernel"] + variables["dense/bias"]) * variables[
        "scale"
    ]
    np.testing.assert_allclose(served["net"], expected, rtol=0, atol=NEAR)


@pytest.mark.parametrize("tpu", [None, "", "local"])
def test_a_resolver_without_a_tpu_is_none(tpu: str | None) -> None:
    """A resolver without a TPU means no cluster; a config without one trains on the host."""
    assert training.TPUClusterResolver(tpu, zone=None) is None
    assert training.RunConfig(cluster=None).replace(model_dir="model").cluster is None


@pytest.mark.parametrize("devices", [["/cpu:0"], ["/cpu:0", "/cpu:1"]])
def test_strategies_that_copy_variables_are_refused(
    devices: list[str], tmp_path: pathlib.Path
) -> None:
    """A Trainer in the scope of a MirroredStrategy is an error that says what to do instead."""
    # There is one device; a test before this one may have said that each op has to have its own.
    tf.config.set_soft_device_placement(True)
    with (
        tf.distribute.MirroredStrategy(devices).scope(),
        pytest.raises(errors.InvalidInput, match=r"under MirroredStrategy.*OneDeviceStrategy"),
    ):
        make(model(minimized), tmp_path)


@pytest.mark.full
def test_wrong_inputs_are_refused(tmp_path: pathlib.Path) -> None:
    """Inputs that are no datasets, dense ids and saving by oneself are refused with the way out."""
    trainer = make(model(minimized), tmp_path)
    with pytest.raises(errors.WrongType, match=r"must return a tf\.data\.Dataset"):
        trainer.train(lambda: {"word": 1}, steps=1)
    dense = tf.data.Dataset.from_tensors(({"word": tf.ones([4, 1], tf.int64)}, tf.ones([4, 1])))
    with pytest.raises(errors.InvalidInput, match=r"The ids of \['word'\] are dense"):
        trainer.train(lambda: dense, steps=1)
    with pytest.raises(errors.OutOfOrder, match=r"Trainer\.train writes checkpoints"):
        training.Saver().save(None, "path")
    with pytest.raises(errors.InvalidInput, match=r"no checkpoint in .*; train first"):
        trainer.export_saved_model(str(tmp_path), dict)
    with pytest.raises(errors.OutOfOrder, match="inside a model_fn that a Trainer calls"):
        training.get_regularization_losses()
    with pytest.raises(errors.InvalidSpec, match="zero_debias=True is not supported"):
        training.ExponentialMovingAverage(0.5, zero_debias=True)
