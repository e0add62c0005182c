"""`TrainerModel`: Keras runs the steps of an unchanged model_fn of an estimator."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import fresh
from tf2_engine import training
from tf2_engine.keras import TrainerModel
from tf2_engine.types import Dataset, Nest, Tensor

v1 = tf.compat.v1

ROUNDING = 2.0**-24
"""The largest relative error of one float32 operation."""
FEATURES = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
LABELS = (np.arange(12) % 3 == 0).astype(np.float32).reshape(12, 1)


def input_fn() -> Dataset:
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(4)


def network(features: Tensor, mode: str, loops: bool = False) -> Tensor:
    """Computes logits with all that makes variables: a scope, layers, a cell and get_variable.

    Args:
        loops: whether the cell runs in a loop, whose gradient takes long to trace.
    """
    training_now = mode == training.ModeKeys.TRAIN
    with v1.variable_scope("net"):
        net = v1.layers.dense(features, 3, activation=tf.nn.tanh, name="hidden")
        net = v1.layers.batch_normalization(net, momentum=0.5, training=training_now)
        cell = v1.nn.rnn_cell.LSTMCell(2)
        if loops:
            outputs, _ = v1.nn.dynamic_rnn(cell, net[:, tf.newaxis], dtype=tf.float32)
            output = outputs[:, 0]
        else:
            (output,), _ = v1.nn.static_rnn(cell, [net], dtype=tf.float32)
        return output @ v1.get_variable("last", [2, 1])


def model_fn(features: Tensor, labels: Tensor, mode: str, params: Any) -> object:
    logits = network(features, mode, params.get("loops", False))
    if mode == training.ModeKeys.PREDICT:
        return training.ModelSpec(mode, predictions={"logits": logits})
    loss = v1.losses.sigmoid_cross_entropy(labels, logits)
    if mode == training.ModeKeys.EVAL:
        classes, guesses = tf.cast(labels, tf.int32), tf.cast(features[:, :1] > 0.4, tf.int32)
        metrics = {
            "mean": v1.metrics.mean(features),
            "accuracies": v1.metrics.mean_per_class_accuracy(classes, guesses, 2),
            "recall": v1.metrics.recall(classes, guesses),
        }
        return training.ModelSpec(mode, loss=loss, eval_metric_ops=metrics)
    step = v1.train.get_global_step()
    rate = v1.train.exponential_decay(params["rate"], step, 2, 0.5)
    trained = v1.trainable_variables()
    assert trained[0] in trained
    assert trained[0] not in trained[1:]
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        train_op = v1.train.AdamOptimizer(rate).minimize(loss, step)
    logged = {"loss": loss, "step": step}
    hooks = [v1.train.LoggingTensorHook(logged, every_n_iter=1, at_end=True)]
    return training.ModelSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks)


def model(directory: pathlib.Path, function: Any = model_fn) -> TrainerModel:
    config = training.RunConfig(str(directory), tf_random_seed=1, log_step_count_steps=None)
    return TrainerModel(function, config=config, params={"rate": 0.1})


class Batches(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the losses that Keras reports, and ends the training after some."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last, self.losses = last, []  # type: ignore[var-annotated]

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self.losses.append(logs["loss"])
        self.model.stop_training = batch + 1 == self.last


def test_keras_prints_the_steps_of_a_training(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a callback for batches, too, Keras knows how many there were."""
    model(tmp_path).fit(input_fn)

    assert "3/3" in capsys.readouterr().out


def test_keras_calls_its_callbacks_and_may_end_a_training(tmp_path: pathlib.Path) -> None:
    """A training that a callback ends is saved, and the next one goes on from there."""
    trained, batches = model(tmp_path), Batches(2)
    history = trained.fit(input_fn, callbacks=[batches], verbose=0)

    assert len(batches.losses) == 2
    assert history.history["loss"] == [batches.losses[-1]]
    assert trained.latest_checkpoint().endswith("-2")
    again = model(tmp_path)
    again.fit(input_fn(), max_steps=4, verbose=0)
    assert int(again.step) == 4
    assert again.fit(input_fn, max_steps=4, verbose=0) is None


def test_variables_have_the_names_of_a_graph(tmp_path: pathlib.Path) -> None:
    """Layers, cells and optimizers name their variables as in an estimator's checkpoint."""
    trained = model(tmp_path)
    trained.params["loops"] = True
    trained.fit(input_fn, max_steps=1, verbose=0)
    names = {each.name for each in trained.weights}

    assert {
        *("net/hidden/kernel:0", "net/batch_normalization/moving_mean:0", "net/last:0"),
        *("net/rnn/lstm_cell/kernel:0", "net/last/Adam_1:0", "beta2_power:0"),
    } <= names
    assert "net/batch_normalization/moving_mean" in trained.get_variable_names()
    assert np.any(trained.get_variable_value("net/batch_normalization/moving_mean") != 0)


def test_metrics_of_the_graph_are_those_of_all_batches(tmp_path: pathlib.Path) -> None:
    """The values are read after the last update, and each evaluation begins anew."""
    trained = model(tmp_path)
    trained.fit(input_fn, max_steps=2, verbose=0)
    classes, guesses = LABELS[:, 0] == 1, FEATURES[:, 0] > 0.4
    right = [np.mean(guesses[classes]), np.mean(~guesses[~classes])]
    for _ in range(2):
        results = trained.evaluate(input_fn)

        assert results["global_step"] == 2
        # The sum of 24 positive float32 numbers has 23 roundings, the quotient one more, and
        # NumPy's mean about six. The other metrics are quotients of counts.
        assert results["mean"] == pytest.approx(FEATURES.mean(), rel=30 * ROUNDING)
        assert results["accuracies"] == pytest.approx(np.mean(right), rel=4 * ROUNDING)
        assert results["recall"] == pytest.approx(right[0], rel=2 * ROUNDING)


def test_predictions_and_exports_are_those_of_the_model_fn(tmp_path: pathlib.Path) -> None:
    """`predict` joins what `predictions` yields, and an exported model computes the same."""
    trained = model(tmp_path)
    trained.fit(input_fn, max_steps=1, verbose=0)
    rows = [row["logits"] for row in trained.predictions(input_fn)]

    def receiver() -> Any:
        fed = v1.placeholder(tf.float32, [None, 2], "fed")
        return type("Receiver", (), {"features": fed, "receiver_tensors": {"x": fed}})

    served = tf.saved_model.load(trained.export_saved_model(str(tmp_path / "served"), receiver))
    results = served.signatures["serving_default"](x=tf.constant(FEATURES))
    np.testing.assert_array_equal(trained.predict(input_fn())["logits"], np.stack(rows))
    np.testing.assert_array_equal(next(trained.predict(input_fn))["logits"], rows[0])
    # The same ops in two graphs, whose fused kernels may round differently. About 32 ops lead to a
    # logit; their results are below 2, so that each rounds by at most 2 * ROUNDING.
    tolerance = 32 * 2 * ROUNDING
    np.testing.assert_allclose(results["logits"], np.stack(rows), rtol=0, atol=tolerance)


@pytest.mark.parametrize("has_labels", [True, False])
def test_an_input_function_may_return_what_an_iterator_delivers(
    has_labels: bool, tmp_path: pathlib.Path
) -> None:
    """Each batch is one of the dataset's, with what the function does after `get_next`."""

    def delivered() -> Nest:
        features, labels = training.make_iterator(input_fn()).get_next()
        return features + 1.0, labels if has_labels else None

    def summing(features: Tensor, labels: Tensor, mode: str) -> object:
        assert (labels is not None) == has_labels
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(features) * weight
        train_op = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        return training.ModelSpec(mode, loss=loss, train_op=train_op)

    trained = model(tmp_path, summing)
    trained.fit(delivered, verbose=0)

    assert int(trained.step) == 3
    # Each of three means has the roundings of 8 sums `features + 1.0`, 7 additions and a quotient;
    # the weight has three, and the expected value about six of NumPy's.
    wanted = pytest.approx(-3 * (FEATURES.mean() + 1), rel=20 * ROUNDING)
    assert trained.get_variable_value("weight") == wanted


def test_variables_start_from_another_checkpoint(tmp_path: pathlib.Path) -> None:
    """`init_from_checkpoint` takes names, scopes and variables, and a checkpoint goes before."""
    first = model(tmp_path / "first")
    first.fit(input_fn, max_steps=1, verbose=0)
    old = training.load_checkpoint(str(tmp_path / "first"))
    assert dict(training.list_variables(str(tmp_path / "first")))["net/last"] == [2, 1]

    def started(features: Tensor, labels: Tensor, mode: str, params: Any) -> object:
        with v1.variable_scope("new"):
            logits = network(features, mode)
        variable = next(each for each in v1.trainable_variables() if each.name == "new/net/last:0")
        scopes = {"net/hidden/": "new/net/hidden/", "net/last": variable}
        training.init_from_checkpoint(str(tmp_path / "first"), scopes)
        loss = v1.losses.sigmoid_cross_entropy(labels, logits)
        train_op = v1.train.GradientDescentOptimizer(params["rate"]).minimize(loss)
        return training.ModelSpec(mode, loss=loss, train_op=train_op)

    frozen = model(tmp_path / "second", started)
    frozen.params["rate"] = 0.0
    frozen.fit(input_fn, max_steps=1, verbose=0)
    for name in ("net/hidden/kernel", "net/last"):
        np.testing.assert_array_equal(
            frozen.get_variable_value(f"new/{name}"), old.get_tensor(name), err_msg=name
        )
    frozen = model(tmp_path / "second", started)
    frozen.fit(input_fn, max_steps=2, verbose=0)
    moved = frozen.get_variable_value("new/net/last")
    assert np.any(moved != old.get_tensor("net/last"))
    again = model(tmp_path / "second", started)
    again.evaluate(input_fn)
    np.testing.assert_array_equal(again.trainer.variables["new/net/last"].numpy(), moved)


def test_a_warm_start_renames_variables(tmp_path: pathlib.Path) -> None:
    """Several expressions match variables that are not trained, too; others start anew."""
    model(tmp_path / "first").fit(input_fn, max_steps=1, verbose=0)
    settings = training.WarmStartSettings(
        *(str(tmp_path / "first"), ["new/.*kernel", "new/.*moving_mean"]),
        var_name_to_prev_var_name={
            "new/net/hidden/kernel": "net/hidden/kernel",
            "new/net/rnn/lstm_cell/kernel": "net/rnn/lstm_cell/kernel",
            "new/net/batch_normalization/moving_mean": "net/batch_normalization/moving_mean",
        },
    )

    def renamed(features: Tensor, labels: Tensor, mode: str) -> object:
        with v1.variable_scope("new"):
            logits = network(features, training.ModeKeys.EVAL)
        loss = v1.losses.sigmoid_cross_entropy(labels, logits)
        return training.ModelSpec(mode, loss=loss)

    old = training.load_checkpoint(str(tmp_path / "first"))
    warm = TrainerModel(renamed, str(tmp_path / "second"), warm_start_from=settings)
    warm.evaluate(input_fn)
    for name in settings.var_name_to_prev_var_name or ():
        value = warm.trainer.variables[name].numpy()
        np.testing.assert_array_equal(value, old.get_tensor(name.removeprefix("new/")), name)
    assert np.any(warm.trainer.variables["new/net/last"].numpy() != old.get_tensor("net/last"))


@pytest.mark.parametrize("kind", ["numpy", "pandas"])
def test_arrays_are_an_input(kind: str) -> None:
    """Batches cross the ends of epochs, and the last one is what is left."""
    if kind == "numpy":
        read = training.numpy_input_fn({"x": FEATURES[:3, 0]}, LABELS[:3, 0], 4, num_epochs=2)
    else:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"x": FEATURES[:3, 0]})
        read = training.pandas_input_fn(frame, pandas.Series(LABELS[:3, 0]), 4, num_epochs=2)
    batches = [(features["x"].numpy(), labels.numpy()) for features, labels in read()]

    twice = np.tile(FEATURES[:3, 0], 2), np.tile(LABELS[:3, 0], 2)
    assert [len(each) for each, _ in batches] == [4, 2]
    for place in range(2):
        joined = np.concatenate([each[place] for each in batches])
        np.testing.assert_array_equal(joined, twice[place])


ON_KERAS_3 = """\
import numpy as np
import tensorflow as tf
from tf2_engine import errors, training
from tf2_engine.keras import TrainerModel

v1 = tf.compat.v1
LAYERS = {"none": lambda x: x, "of TensorFlow 1": lambda x: v1.layers.dense(x, 1),
          "of Keras": lambda x: tf.keras.layers.Dense(1)(x)}

def input_fn():
    return tf.data.Dataset.from_tensors(np.ones([2, 1], np.float32)).repeat(3)

def model_fn(features, mode, params):
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    loss = weight * tf.reduce_mean(LAYERS[params["layers"]](features))
    train_op = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
    return training.ModelSpec(mode, loss=loss, train_op=train_op)

assert not tf.keras.__version__.startswith("2.")
model = TrainerModel(model_fn, "model", params={"layers": "none"})
assert model.fit(input_fn, verbose=0).history == {"loss": [-1.0]}  # of the last of three steps
assert model.evaluate(input_fn, steps=1)["loss"] == -1.5
for layers in ("of TensorFlow 1", "of Keras"):
    try:
        TrainerModel(model_fn, "other", params={"layers": layers}).fit(input_fn)
    except errors.OutOfOrder as error:
        assert "Set the environment variable TF_USE_LEGACY_KERAS=1" in str(error)
    else:
        raise AssertionError(layers)
"""


@pytest.mark.skipif(tf.__version__.startswith("2.15"), reason="its tf.keras is Keras 2")
def test_a_model_fn_without_layers_runs_with_keras_3(tmp_path: pathlib.Path) -> None:
    """Keras 3 reports the loss of the step; layers need Keras 2, and the error says how."""
    kept = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    done = fresh.code(ON_KERAS_3, cwd=tmp_path, env=kept)

    assert done.returncode == 0, done.stderr[-4000:]
