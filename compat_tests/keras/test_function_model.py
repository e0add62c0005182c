"""`FunctionModel`: a model whose steps are a function that makes its layers when it first runs."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import errors, preprocessing
from tf2_engine.keras import ColumnEmbedding, FunctionModel, columns_of, embedding_column, in_model
from tf2_engine.keras.table_settings import FeatureSettings, TableSettings
from tf2_engine.types import Dataset, Nest, Tensor

EMB = tf.tpu.experimental.embedding


def tower(net: Tensor, scope: str, sizes: list[int]) -> Tensor:
    with in_model.scope(scope), tf.name_scope("ignored"):
        for size in sizes:
            net = in_model.layer(tf.keras.layers.Dense, size, default="dense")(net)
        return net + in_model.variable("bias", [sizes[-1]], initializer="zeros")


def model_fn(features: Nest, labels: Nest, mode: str, params: dict[str, list[int]]) -> object:
    net = tower(features["user"], "left", params["sizes"])
    net = tower(net, "right", [1])
    if mode == "infer":
        return in_model.Step(mode, predictions=net)
    loss = tf.reduce_mean(tf.square(labels - net))
    mean = in_model.metric(tf.compat.v1.metrics.mean, net)
    rate = 0.1 / tf.cast(in_model.step() + 1, tf.float32)
    optimizer = in_model.optimizer(tf.keras.optimizers.SGD, rate)
    pairs = optimizer.compute_gradients(loss)
    kernels = [each for each in pairs if "bias" not in in_model.variable_name(each[1])]
    train_op = optimizer.apply_gradients(kernels)
    return in_model.Step(mode, loss=loss, train_op=train_op, eval_metric_ops={"mean": mean})


def model(function: Callable[..., object] = model_fn) -> FunctionModel:
    columns = [embedding_column(preprocessing.Identity("user", 9), 2)]
    embedding = ColumnEmbedding(columns, EMB.SGD(0.1))
    return FunctionModel(function, embedding, {"sizes": [3, 2]}, {"train": 2})


def batches(count: int = 100) -> Dataset:
    ids = tf.sparse.from_dense([[1], [2]])
    return tf.data.Dataset.from_tensors(({"user": ids}, [[1.0], [0.0]])).repeat(count)


def test_names_are_those_of_a_graph_of_tensorflow_1(tmp_path: pathlib.Path) -> None:
    """Scopes name layers and variables; unnamed layers are numbered in each scope."""
    trained = model()
    trained.keep_checkpoints(str(tmp_path))
    trained.fit(batches(), max_steps=1)

    assert [trained.name_of(each) for each in trained.dense_variables] == [
        *("left/dense/kernel", "left/dense/bias", "left/dense_1/kernel", "left/dense_1/bias"),
        *("left/bias", "right/dense/kernel", "right/dense/bias", "right/bias"),
    ]
    assert {*trained.checkpoints.variables()} == {*map(trained.name_of, trained.dense_variables)}


def test_a_step_trains_at_the_rate_that_the_function_computes() -> None:
    """The gradient is 1, so the variable falls by the rates; an evaluation trains nothing."""

    def falling(features: Nest, labels: Nest, mode: str) -> object:
        weight = in_model.variable("weight", [1], initializer="zeros")
        loss = tf.reduce_sum(weight) + 0.0 * tf.reduce_sum(features["user"])
        rate = 0.1 / (tf.cast(in_model.step(), tf.float32) + 1.0)
        train_op = in_model.optimizer(tf.keras.optimizers.SGD, rate).minimize(loss)
        return in_model.Step(mode, loss=loss, train_op=train_op)

    trained = model(falling)
    trained.fit(batches(), max_steps=3)
    (weight,) = trained.dense_variables
    # In units of 2**-27: the rate 0.1 rounds by 0.5, which counts 1 + 1/2 + 1/3 times; its two
    # quotients round by 0.25 at most, and two of the sums, which are below 0.25, by 1: 3.5 in all.
    np.testing.assert_allclose(
        weight.numpy(), -(0.1 + 0.1 / 2 + 0.1 / 3), rtol=0, atol=3.5 * 2.0**-27
    )
    before = weight.numpy()
    trained.evaluate(batches(), steps=2)

    np.testing.assert_array_equal(weight.numpy(), before)
    assert trained.global_step == 3


def test_dropout_is_for_training_alone() -> None:
    """Dropout draws while it trains, and predictions drop nothing."""

    def dropping(features: Nest, labels: Nest, mode: str) -> object:
        ones = tf.ones([40])
        kept = in_model.dropout(ones, 0.5, training=mode == "train")
        if mode == "infer":
            return in_model.Step(mode, predictions=kept[tf.newaxis])
        loss = tf.reduce_sum(kept * in_model.variable("weight", [40], initializer="zeros"))
        in_model.optimizer(tf.keras.optimizers.SGD, 1.0).minimize(loss)
        return in_model.Step(mode, loss=loss)

    trained = model(dropping)
    trained.fit(batches(), max_steps=1)

    assert {*trained.dense_variables[0].numpy()} == {-2.0, 0.0}
    np.testing.assert_array_equal(next(trained.predictions(batches(1)))["output"], np.ones(40))


def test_a_model_continues_from_its_checkpoint(tmp_path: pathlib.Path) -> None:
    """Predictions and evaluations of another model of the same function are the same."""
    first, second = model(), model()
    for each in (first, second):
        each.keep_checkpoints(str(tmp_path))
    first.fit(batches(), max_steps=3)

    assert second.evaluate(batches(), steps=1) == first.evaluate(batches(), steps=1)
    assert next(second.predictions(batches(1))) == next(first.predictions(batches(1)))


def test_layers_of_one_name_are_refused() -> None:
    """Keras would give two layers of one name two variables, and so does TensorFlow 1."""

    def twice(features: Nest) -> object:
        for _ in range(2):
            net = in_model.layer(tf.keras.layers.Dense, 1, name="same")(features["user"])
        return in_model.Step(predictions=net)

    with pytest.raises(errors.InvalidInput, match="Two layers of a model are called same"):
        next(model(twice).predictions(batches(1)))


def test_layers_are_made_in_a_model_only() -> None:
    """Outside of a model there are no scopes and no variables."""
    with pytest.raises(errors.InvalidInput, match="only while a FunctionModel runs its function"):
        in_model.step()


def test_input_functions_get_params() -> None:
    """An input function gets the params of its mode, if it takes params."""
    given = {}

    def input_fn(params: dict[str, int]) -> Dataset:
        given.update(params)
        return batches()

    assert model().data_of(input_fn, "train").element_spec == batches().element_spec
    assert given == {"sizes": [3, 2], "batch_size": 2, "use_tpu": False}
    assert model().data_of(batches, "eval").element_spec == batches().element_spec
    with pytest.raises(errors.InvalidInput, match=r"Return a tf\.data\.Dataset"):
        model().data_of(lambda: 1, "train")


def test_dicts_of_tables_become_columns() -> None:
    """A table of its own rate gets a copy of the model's optimizer; others get none."""
    rule = EMB.Adagrad(0.1)
    columns = columns_of(
        {"a": TableSettings(9, 2, learning_rate=0.5), "b": TableSettings(8, 2, combiner="sum")},
        {"x": FeatureSettings("a"), "y": FeatureSettings("b", 3), "z": FeatureSettings("b")},
        rule,
    )

    assert columns["x"].table.optimizer.learning_rate == 0.5
    assert columns["y"].table is columns["z"].table
    assert (columns["y"].table.optimizer, columns["y"].table.combiner) == (None, "sum")
    assert columns["y"].max_sequence_length == 3
    assert rule.learning_rate == 0.1
