"""`TableModel.warm_start_from`: which variables start with those of another model."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import errors
from tf2_engine import keras as ours

FEATURES = {"a": tf.ones([2, 3])}


class Model(ours.TableModel):  # type: ignore[misc]
    """Two dense layers."""

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
    """Writes a checkpoint as an estimator does, by names; returns its variables."""
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
    """Those whose names match, by the names that they had."""
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
    """With its shape, and the two ways out."""
    saved(tmp_path)
    model = Model()
    model.warm_start_from(str(tmp_path))
    with pytest.raises(errors.InvalidInput, match=r"dnn/top/bias, \(1,\), .* not there\. Choose"):
        started(model)
    with pytest.raises(errors.WrongType, match="is no path"):
        model.warm_start_from({"ckpt": 1})
