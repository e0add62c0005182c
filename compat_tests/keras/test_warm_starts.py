"""`TableModel.warm_start_from` initializes variables from another model's checkpoint."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import errors, preprocessing
from tf2_engine import keras as ours

FEATURES = {"a": tf.ones([2, 3])}


class Model(ours.TableModel):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(names={"top": "dnn/top"})
        self.first = tf.keras.layers.Dense(2, name="first")
        self.top = tf.keras.layers.Dense(1, name="top")
        self.compile(optimizer=tf.keras.optimizers.SGD(0.1))

    def call(self, features: Any, training: bool = False) -> Any:
        return self.top(self.first(features["a"]))

    def predict_step(self, features: Any) -> Any:
        return {"value": self(features)}


def saved(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Writes a checkpoint with an estimator's names, and returns its variables."""
    rng = np.random.default_rng(2)
    shapes = {"first/kernel": [3, 2], "first/bias": [2], "dnn/top/kernel": [2, 1], "top_bias": [1]}
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {name: tf.compat.v1.Variable(each) for name, each in values.items()}
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(variables).save(session, str(folder / "model.ckpt"))
    return values


def started(model: Any) -> dict[str, np.ndarray]:
    """Returns the variables of a model before its first step, by their names in checkpoints."""
    list(model.predictions(tf.data.Dataset.from_tensors(FEATURES)))
    return {model.name_of(each): np.asarray(each) for each in model.trainable_variables}


def test_variables_start_with_those_of_an_estimator(tmp_path: pathlib.Path) -> None:
    """Variables whose names match start with the values that their old names have."""
    there = saved(tmp_path)
    model = Model()
    model.warm_start_from(str(tmp_path), old_names={"dnn/top/bias": "top_bias"})
    here = started(model)
    np.testing.assert_array_equal(here["first/kernel"], there["first/kernel"])
    np.testing.assert_array_equal(here["dnn/top/bias"], there["top_bias"])

    few = Model()
    few.warm_start_from(str(tmp_path), names="dnn/top/k")
    here = started(few)
    np.testing.assert_array_equal(here["dnn/top/kernel"], there["dnn/top/kernel"])
    np.testing.assert_array_equal(here["first/bias"], [0.0, 0.0])


def test_a_variable_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    """The message has the variable's shape and both ways out."""
    saved(tmp_path)
    model = Model()
    model.warm_start_from(str(tmp_path))
    with pytest.raises(
        errors.InvalidInput, match=r"top/bias of shape \(1,\) .* it is missing there\. Select"
    ):
        started(model)
    with pytest.raises(errors.WrongType, match="is not a path"):
        model.warm_start_from({"ckpt": 1})


def with_table(start: float) -> Any:
    """Makes a model with a table, whose rows start with a number, and a layer."""
    column = ours.embedding_column(
        preprocessing.Identity("a", 5), 2, initializer=tf.constant_initializer(start)
    )

    class WithTable(ours.TableModel):  # type: ignore[misc]
        def __init__(self) -> None:
            adagrad = tf.tpu.experimental.embedding.Adagrad(0.1)
            super().__init__(ours.ColumnEmbedding([column], adagrad))
            self.top = tf.keras.layers.Dense(1, name="top", kernel_initializer="ones")
            self.compile(optimizer=tf.keras.optimizers.SGD(0.1))

        def call(self, features: Any, training: bool = False) -> Any:
            return self.top(self.embedding(features)["a"])

        def train_step(self, batch: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(batch[0], training=True) - batch[1]))
            self.minimize(loss, tape)
            return {"loss": loss}

    return WithTable()


IDS = {"a": tf.constant([[3], [4]], tf.int64)}


def state(model: Any) -> dict[str, np.ndarray]:
    engine = model.embedding.tables.embedding
    (table,) = engine.tables.values()
    variables = {name: shard.numpy() for name, (shard,) in table.variables.items()}
    return {"top": np.asarray(model.top.kernel), **variables}


def test_tables_start_with_those_of_another_model(tmp_path: pathlib.Path) -> None:
    """Matching tables start with the checkpoint's rows, but slots do not."""
    data = tf.data.Dataset.from_tensors((IDS, tf.ones([2, 1]))).repeat()
    first = with_table(3.0)
    first.keep_checkpoints(str(tmp_path / "first"))
    first.fit(data, max_steps=2)

    second = with_table(5.0)
    second.keep_checkpoints(str(tmp_path / "second"))
    second.warm_start_from(ours.WarmStart(first.latest_checkpoint(), names="a"))
    second.restore(data, training=True)
    there, here = state(first), state(second)
    np.testing.assert_array_equal(here["parameters"], there["parameters"])
    assert not np.array_equal(there["parameters"], np.full([5, 2], 3.0))
    np.testing.assert_array_equal(here["accumulators"], np.full([5, 2], 0.1, np.float32))
    np.testing.assert_array_equal(here["top"], [[1.0], [1.0]])
    second.fit(data, max_steps=1)

    third = with_table(7.0)
    third.keep_checkpoints(str(tmp_path / "second"))
    third.warm_start_from(str(tmp_path / "first"))
    third.restore(data, training=True)
    np.testing.assert_array_equal(state(third)["parameters"], state(second)["parameters"])

    other = with_table(5.0)
    other.warm_start_from(None)
    other.restore(data, training=True)
    np.testing.assert_array_equal(state(other)["parameters"], np.full([5, 2], 5.0))
