"""Programs for the layer of tensorflow-recommenders and for ours, which has to agree with it.

They are the programs of its documentation: on a CPU, with Keras 2 and its legacy optimizers, the
only ones that it accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from compat_tests.programs import keras_models as models

EMB = tf.tpu.experimental.embedding
Make = Callable[[Any], Any]
"""Returns an optimizer of a namespace of legacy optimizers."""

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda of: of.SGD(0.1),
    "Adagrad": lambda of: of.Adagrad(0.1),
    "Adam": lambda of: of.Adam(0.1),
    "Ftrl": lambda of: of.Ftrl(0.1, l1_regularization_strength=0.01),
}
FORMS = ("functional", "subclass", "separate", "schedule")
RUNS = (*OPTIMIZERS, *FORMS)
"""Optimizers in the subclassed model, and forms of a program with Adagrad."""


def feature_config() -> dict[str, Any]:
    """Returns the config of a table with two features, and of one with a single feature."""
    values = models.start()
    users = EMB.TableConfig(
        models.USERS, models.DIM, tf.constant_initializer(values["users"]), name="users"
    )
    items = EMB.TableConfig(
        models.ITEMS, models.OTHER_DIM, tf.constant_initializer(values["items"]), name="items",
        combiner="sum",
    )  # fmt: skip
    return {
        "feature_one": EMB.FeatureConfig(table=users),
        "feature_three": EMB.FeatureConfig(table=users),
        "feature_two": EMB.FeatureConfig(table=items),
    }


def dataset() -> tf.data.Dataset:
    """Returns batches of labels and features, as the listings have them."""
    samples = models.data()

    def batch(rows: dict[str, Any]) -> Any:
        ids = {
            "feature_one": tf.cast(rows["single"], tf.int32),
            "feature_three": tf.cast(tf.abs(rows["pair"][:, 0]), tf.int32),
            "feature_two": tf.RaggedTensor.from_tensor(tf.cast(rows["bag"], tf.int32), padding=-1),
        }
        return rows["labels"], ids

    return tf.data.Dataset.from_tensor_slices(samples).batch(models.GLOBAL_BATCH).map(batch)


def run(name: str, layer: Any, keras: Any) -> dict[str, Any]:
    """Trains one of `RUNS`; returns its tables, its kernel, and its predictions.

    Args:
        layer: the class of the layer.
        keras: the Keras that it belongs to.
    """
    legacy, strategy = keras.optimizers.legacy, tf.distribute.get_strategy()
    rate: Any = 0.1
    if name == "schedule":
        rate = keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5)
    with strategy.scope():
        optimizer = OPTIMIZERS.get(name, lambda of: of.Adagrad(rate))(legacy)
        of_dense = legacy.Adam(0.1) if name == "separate" else optimizer
        build = functional if name == "functional" else subclassed
        model, embedding_layer = build(layer, keras, optimizer)

    @tf.function
    def training_step(dataset_iterator: Any, num_steps: Any) -> None:
        def tpu_step(inputs: Any) -> None:
            labels, features = inputs
            with tf.GradientTape() as tape:
                model_output = model(features)
                loss = tf.reduce_mean((model_output - labels) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            grads_and_vars = list(zip(gradients, model.trainable_variables, strict=True))
            ids = [id(v) for v in embedding_layer.trainable_variables]
            of_dense.apply_gradients([(g, v) for g, v in grads_and_vars if id(v) not in ids])
            optimizer.apply_gradients([(g, v) for g, v in grads_and_vars if id(v) in ids])

        for _ in tf.range(num_steps):
            strategy.run(tpu_step, args=(next(dataset_iterator),))

    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    batches = strategy.distribute_datasets_from_function(lambda _: dataset(), options)
    training_step(iter(batches), tf.constant(models.STEPS))
    (dense,) = (each for each in model.layers if isinstance(each, keras.layers.Dense))
    tables = {
        config.name: value.numpy() for config, value in embedding_layer.embedding_tables.items()
    }
    outputs = [model(features).numpy() for _, features in dataset()]
    return {**tables, "kernel": dense.kernel.numpy(), "outputs": np.concatenate(outputs)}


def functional(layer: Any, keras: Any, optimizer: Any) -> tuple[Any, Any]:
    """Returns a functional model and its embedding layer."""
    size = models.GLOBAL_BATCH
    embedding_inputs = {
        "feature_one": keras.Input(batch_size=size, shape=(), dtype=tf.int32),
        "feature_three": keras.Input(batch_size=size, shape=(), dtype=tf.int32),
        "feature_two": keras.Input(batch_size=size, shape=(None,), dtype=tf.int32, ragged=True),
    }
    embedding_layer = layer(feature_config=feature_config(), optimizer=optimizer)
    embedding = embedding_layer(embedding_inputs)
    logits = dense_of(keras)(tf.concat(tf.nest.flatten(embedding), 1))
    return keras.Model(embedding_inputs, logits), embedding_layer


def subclassed(layer: Any, keras: Any, optimizer: Any) -> tuple[Any, Any]:
    """Returns a subclassed model and its embedding layer."""

    class ModelWithEmbeddings(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding_layer = layer(feature_config=feature_config(), optimizer=optimizer)
            self.dense = dense_of(keras)

        def call(self, inputs: Any) -> Any:
            embedding = self.embedding_layer(inputs)
            return self.dense(tf.concat(tf.nest.flatten(embedding), 1))

    model = ModelWithEmbeddings()
    return model, model.embedding_layer


def dense_of(keras: Any) -> Any:
    return keras.layers.Dense(1, use_bias=False, kernel_initializer=models.kernel_start)
