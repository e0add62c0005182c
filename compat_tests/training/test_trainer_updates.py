"""`Trainer`: gradients, losses, regularizers and initial values, compared with formulas."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.programs import jobs
from compat_tests.training.trainers import (
    BATCH,
    NEAR,
    RATE,
    change,
    input_fn,
    make,
    minimized,
    model,
    trained,
    values,
)
from tf2_engine import errors, training

v1 = tf.compat.v1


def test_clipping_reaches_the_model_and_not_the_tables(tmp_path: pathlib.Path) -> None:
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
        jobs.assert_equal(steps[-1], expected[-1])


def only_the_model() -> list[Any]:
    """Returns the trainable variables without those that stand for tables."""
    return [each for each in v1.trainable_variables() if "dummy" not in each.name]


@pytest.mark.full
def test_two_losses_train_what_their_var_lists_name(tmp_path: pathlib.Path) -> None:
    """The table moves by the loss whose `var_list` has its dummy, and by no other."""

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
    trainer = make(model(lambda loss: (minimized(loss), minimized(2 * loss))), tmp_path)
    with pytest.raises(
        errors.InvalidInput, match=r"Feature 'word': .*Differentiate the sum of the losses, or"
    ):
        trainer.train(input_fn, steps=1)
    trainer = make(model(lambda loss: loss), tmp_path)
    with pytest.raises(errors.InvalidInput, match=r"computes no gradient that trains a table"):
        trainer.train(input_fn, steps=1)


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


def models_of_keras(net: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Applies Keras models, some of them in models; returns the output and a batch norm."""
    layers = tf.keras.layers
    norm = layers.BatchNormalization(momentum=0.5)
    net = tf.keras.Sequential([layers.Dense(3), norm])(net, training=True)
    inputs = tf.keras.Input([3])
    nested = tf.keras.Sequential([layers.Dense(3)], name="nested")
    net = tf.keras.Model(inputs, layers.Dense(3, name="named")(nested(2.0 * inputs)))(net)
    with v1.variable_scope("scope"):
        built = tf.keras.Sequential([layers.Dense(3, input_shape=(3,)), layers.Dense(1)])
        return built(net), norm


@pytest.mark.parametrize("updates", [False, True], ids=["without updates", "updates"])
def test_models_of_keras_train_as_in_a_session(updates: bool, tmp_path: pathlib.Path) -> None:
    """Names and values are those of a graph; averages move only if the train_op updates them."""

    def train_op_of(minimize: Any, loss: Any, norm: Any) -> Any:
        return tf.group(minimize(loss), *(norm.updates if updates else ()))

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        net, norm = models_of_keras(tf.ones([BATCH, 2]) * tf.range(float(BATCH))[:, tf.newaxis])
        loss = v1.losses.mean_squared_error(labels, net) + 0.0 * tf.reduce_sum(features["word"])
        return training.ModelSpec(mode, loss=loss, train_op=train_op_of(minimized, loss, norm))

    start, *_, end = trained(tmp_path, model_fn, 2)
    with tf.Graph().as_default(), v1.Session() as session:
        net, norm = models_of_keras(tf.ones([BATCH, 2]) * tf.range(float(BATCH))[:, tf.newaxis])
        loss = v1.losses.mean_squared_error(tf.ones([BATCH, 1]), net)
        train_op = train_op_of(v1.train.GradientDescentOptimizer(RATE).minimize, loss, norm)
        variables = {each.op.name: each for each in v1.global_variables()}
        assert variables.keys() == start.keys() - {"words"}
        for name, variable in variables.items():
            variable.load(start[name], session)
        for _ in range(2):
            session.run(train_op)
        of_session = session.run(variables)

    for name, expected in of_session.items():
        np.testing.assert_allclose(end[name], expected, rtol=0, atol=NEAR, err_msg=name)
    moved = not np.array_equal(end["sequential/batch_normalization/moving_mean"], np.zeros(3))
    assert moved == updates


def test_only_keras_takes_a_model_fn_for_a_graph_of_tensorflow_1(tmp_path: pathlib.Path) -> None:
    """A program that asks whether its variables are eager hears that they are."""
    answers = []

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        answers.append(v1.executing_eagerly_outside_functions())
        loss = tf.reduce_sum(features["word"] * v1.get_variable("scale", [2]))
        return training.ModelSpec(mode, loss=loss, train_op=minimized(loss))

    trained(tmp_path, model_fn, 1)

    assert set(answers) == {True}


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
