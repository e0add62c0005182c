"""Functional models of Keras 2 declare sparse inputs like users of tensorflow-recommenders."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from compat_tests.support import tpus
from tf2_engine.keras import layer_for

KERAS = tf.keras if tf.__version__.startswith("2.15") else tf_keras
EMB = tf.tpu.experimental.embedding
BATCH, ROWS, DIM = 4, 5, 3
IDS = tf.RaggedTensor.from_row_lengths(tf.constant([0, 1, 4, 2, 2, 0]), [1, 2, 2, 1])
START = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)


def make_layer(**options: Any) -> Any:
    table = EMB.TableConfig(ROWS, DIM, tf.constant_initializer(START), combiner="sum", name="t")
    features = {name: EMB.FeatureConfig(table, name=name) for name in ("a", "b")}
    return layer_for(KERAS)(features, KERAS.optimizers.legacy.SGD(0.5), **options)


def make_model(layer: Any, kind: str, batch_size: int | None) -> Any:
    options = {"shape": (), "batch_size": batch_size, "dtype": tf.int32, kind: True}
    inputs = {name: KERAS.Input(name=name, **options) for name in ("a", "b")}
    activations = layer(inputs)
    for activation in activations.values():
        assert activation.shape.as_list() == [batch_size, DIM]
    return KERAS.Model(inputs, activations)


def fed(kind: str) -> Any:
    ids = IDS.to_sparse() if kind == "sparse" else IDS
    return {"a": ids, "b": ids}


def sums() -> Any:
    return np.stack([START[ids.numpy()].sum(0) for ids in IDS])


@pytest.mark.parametrize("arithmetic", ["keras", "tpu"])
@pytest.mark.parametrize("batch_size", [BATCH, None])
@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_inputs_of_rank_one_are_fed_ids(kind: str, batch_size: int | None, arithmetic: str) -> None:
    """A model looks up and trains, eagerly and in a function, with a fixed batch size or not."""
    layer = make_layer(arithmetic=arithmetic)
    model = make_model(layer, kind, batch_size)

    @tf.function
    def step(features: Any) -> Any:
        with tf.GradientTape() as tape:
            activations = model(features)
            loss = tf.reduce_sum(activations["a"]) + tf.reduce_sum(activations["b"])
        gradients = tape.gradient(loss, model.trainable_variables)
        layer.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return activations

    for activation in (*model(fed(kind)).values(), *step(fed(kind)).values()):
        np.testing.assert_array_equal(activation, sums())
    # Row 3 is in no sample; the others moved by 0.5 for each place that they have in two features.
    places = np.bincount(IDS.flat_values.numpy(), minlength=ROWS)
    expected = (START - 0.5 * 2 * places[:, np.newaxis])[IDS.flat_values[0]]
    np.testing.assert_array_equal(model(fed(kind))["a"][0], expected)


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_so_they_are_on_a_tpu(kind: str) -> None:
    """The model is built in the scope of a strategy for TPUs; it needs the batch size there."""
    strategy = tpus.strategy(1)
    with strategy.scope():
        model = make_model(make_layer(), kind, BATCH)

    @tf.function
    def look_up(features: Any) -> Any:
        return strategy.run(model, (features,))

    for activation in look_up(fed(kind)).values():
        (value,) = strategy.experimental_local_results(activation)
        # Sums of whole numbers, which are exact in any order.
        np.testing.assert_array_equal(value, sums())


@pytest.mark.parametrize("arithmetic", [None, "keras"])
def test_pipelining_is_ignored_with_keras_arithmetic(arithmetic: str | None) -> None:
    with pytest.warns(UserWarning, match="`pipeline_execution_with_tensor_core`=True is ignored"):
        layer = make_layer(pipeline_execution_with_tensor_core=True, arithmetic=arithmetic)
    np.testing.assert_array_equal(layer(fed("ragged"))["a"], sums())


@pytest.mark.parametrize("inside", [contextlib.nullcontext, tf.GradientTape])
def test_a_single_id_has_a_row(inside: Any) -> None:
    layer = make_layer()
    with inside():
        activations = layer({"a": 4, "b": tf.constant(0)})
    np.testing.assert_array_equal(activations["a"], START[4])
    np.testing.assert_array_equal(activations["b"], START[0])
