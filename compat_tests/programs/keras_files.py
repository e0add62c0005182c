"""Models in Keras's own files, and the configs of layers as JSON, for one Keras.

Run in a process of its own: `python -m ... <keras|tf_keras> <folder>`. Keras 2.15 and tf_keras
share a registry of their classes: a process that imported both reads the files of one of them.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.programs import keras_models as models
from tf2_engine import errors, preprocessing
from tf2_engine import keras as engine_keras
from tf2_engine.keras import classes, columns

EMB = tf.tpu.experimental.embedding


def halved(numbers: Any) -> Any:
    """Normalizes numbers, by a function that a file names."""
    return tf.cast(numbers, tf.float32) / 2


def falling(step: Any) -> Any:
    return 1.0 / (1.0 + tf.cast(step, tf.float32))


FUNCTIONS = {"halved": halved, "falling": falling, "kernel_start": models.kernel_start}


def reread(keras: Any, layer: Any) -> Any:
    """Returns the layer that a file holds, by its JSON alone."""
    written = json.dumps(keras.saving.serialize_keras_object(layer))
    with keras.utils.custom_object_scope(FUNCTIONS):
        return keras.saving.deserialize_keras_object(json.loads(written))


def same_json(keras: Any, layer: Any, copied: Any) -> bool:
    one, other = (keras.saving.serialize_keras_object(each)["config"] for each in (layer, copied))
    return json.dumps(one) == json.dumps(other)


def optimizers(keras: Any) -> dict[str, Callable[[], Any]]:
    """Returns makers of the optimizers that a layer takes."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    return {
        "none": lambda: None,
        "name": lambda: "adagrad",
        "keras": lambda: keras.optimizers.Adagrad(0.25, initial_accumulator_value=0.5),
        "schedule": lambda: keras.optimizers.SGD(schedule),
        "rate by step": lambda: keras.optimizers.SGD(
            classes._FACTORIES["RateByStep"](keras)(falling)
        ),
        "stock": lambda: EMB.Adam(0.125, beta_1=0.75, clipvalue=(-1.0, 2.0)),
        **{
            f"engine {name}": lambda kind=kind: kind(learning_rate=0.125, weight_decay_factor=0.5)
            for name, kind in tf2_engine.OPTIMIZERS.items()
            if name in ("Adagrad", "FTRL", "ProximalAdagrad", "SGD")
        },
        "by step": lambda: tf2_engine.SGD(columns.ByStep(falling)),
    }


def check_every_optimizer_is_written(keras: Any, which: str) -> None:
    """A layer of JSON has the same settings, the same shared tables, and trains as the first."""
    kind = classes.layer_for(keras)
    layer = kind(models.feature_config(), optimizers(keras)[which](), name="of_json")

    copied = reread(keras, layer)

    assert same_json(keras, layer, copied)
    assert copied.arithmetic == layer.arithmetic
    assert type(copied.optimizer) is type(layer.optimizer)
    config = copied.get_config()["feature_config"].value
    assert config["single"].table is config["pair"].table, "tables are shared as before"
    assert config["single"].table is not config["bag"].table
    features, _ = next(iter(models.dataset(models.GLOBAL_BATCH)))
    if which != "none":
        results = []
        for each in (layer, copied):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(x**2) for x in each(features).values()])
            gradients = tape.gradient(loss, each.trainable_variables)
            results.append([tf.convert_to_tensor(g).numpy() for g in gradients])
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)
    one, other = layer(features), copied(features)
    for key in one:
        np.testing.assert_array_equal(one[key], other[key])


def user() -> Any:
    """Returns a column with a table of its own."""
    return columns.embedding_column(preprocessing.Identity("user", 7), 4)


def number() -> Any:
    return columns.Numeric("number", halved)


def rich_columns(vocabulary: pathlib.Path) -> dict[str, Any]:
    """Returns a column of ids of every kind."""
    vocabulary.write_text("Bern\nRome\n")
    city = preprocessing.Hashed("city", 5)
    return {
        "city": city,
        "list": preprocessing.VocabularyList("list", (b"\xff\x00", "Rome"), num_oov_buckets=2),
        "numbers": preprocessing.VocabularyList("numbers", (7, 9), default_value=1),
        "file": preprocessing.VocabularyFile("file", str(vocabulary), 2, dtype=tf.string),
        "buckets": preprocessing.Bucketized("buckets", (0.0, float("inf")), halved),
        "crossed": preprocessing.Crossed(("city", city), 11, hash_key=3),
        "weighted": preprocessing.Weighted(preprocessing.Identity("id", 4, 0), "amount"),
        "sequence": preprocessing.Sequence(city),
    }


def shared() -> Any:
    """Returns sequences that share a table whose optimizer and initializer are its own."""
    both = columns.shared_embedding_columns(
        [preprocessing.Sequence(preprocessing.Identity(key, 9)) for key in ("one", "other")],
        3,
        initializer=tf.compat.v1.truncated_normal_initializer(stddev=0.25, seed=3),
        max_sequence_lengths=[2, 5],
    )
    for each in both:
        each.table.optimizer = EMB.SGD(columns.ByStep(falling))
    return both


def layers(keras: Any, folder: pathlib.Path) -> dict[str, list[Any]]:
    """Returns layers of every public class that has a config, by its name."""
    dense = classes._FACTORIES
    instances = {name: dense[name](keras) for name in dense}
    plain = columns.PlainEmbedding(preprocessing.Hashed("city", 5), 2, initializer=None)
    return {
        "TPUEmbedding": [
            instances["TPUEmbedding"](
                [(EMB.FeatureConfig(user().table, output_shape=[3]),)],
                "sgd",
                batch_size=8,
                trainable=False,
            )
        ],
        "Preprocessing": [instances["Preprocessing"](rich_columns(folder / "words"), name="raw")],
        "ColumnEmbedding": [
            instances["ColumnEmbedding"]([user(), *shared()], EMB.Adagrad(0.1)),
            instances["ColumnEmbedding"]({"user": user()}, keras.optimizers.SGD(0.5)),
        ],
        "DenseFeatures": [
            instances["DenseFeatures"]([number(), columns.Indicator(user().ids), plain, user()]),
            instances["DenseFeatures"](columns.bucketized_column(number(), [1.0, 2.0])),
        ],
        "SequenceFeatures": [
            instances["SequenceFeatures"](shared(), name="sequences"),
            instances["SequenceFeatures"](columns.SequenceNumeric("number", [2], -1.0)),
        ],
        "LinearFeatures": [instances["LinearFeatures"]([number(), plain.ids], 2, "mean")],
        "Baseline": [instances["Baseline"](3, name="baseline")],
        **heads(instances),
        "GRUCell": [instances["GRUCell"](5, name="cell")],
    }


def heads(instances: dict[str, Any]) -> dict[str, list[Any]]:
    """Returns heads of every kind, with settings that are not the default ones."""
    weighted = instances["BinaryClassHead"](("less", "more"), True, (0.25,), weight_column="w")
    return {
        "BinaryClassHead": [weighted],
        "MultiClassHead": [instances["MultiClassHead"](3, ("a", "b", "c"))],
        "MultiLabelHead": [instances["MultiLabelHead"](3, thresholds=(0.5,))],
        "RegressionHead": [instances["RegressionHead"](2, halved)],
        "PoissonRegressionHead": [instances["PoissonRegressionHead"](2, False)],
        "LogisticRegressionHead": [instances["LogisticRegressionHead"](weight_column="w")],
        "MultiHead": [
            instances["MultiHead"](
                [
                    instances["RegressionHead"](suffix="one"),
                    instances["BinaryClassHead"](suffix="other", name="other"),
                ],
                [0.25, 0.75],
            )
        ],
        "SequenceHead": [instances["SequenceHead"](weighted, "mask")],
    }


def check_every_public_layer_is_written(keras: Any, folder: pathlib.Path) -> None:
    """Each class with a config has cases here; a layer of their JSON is written alike."""
    cases = layers(keras, folder)
    # A TableModel is a model that users write: what it is made with is theirs to write.
    kinds = {name: make(keras) for name, make in classes._FACTORIES.items() if "Model" not in name}
    public = {name for name, kind in kinds.items() if issubclass(kind, keras.layers.Layer)}
    assert public == set(cases)
    assert public < set(engine_keras.__all__)

    for layer in (each for instances in cases.values() for each in instances):
        copied = reread(keras, layer)
        assert type(copied) is type(layer)
        assert (copied.name, copied.trainable) == (layer.name, layer.trainable)
        assert same_json(keras, layer, copied)
        inside = type(layer).from_config(layer.get_config())
        assert same_json(keras, layer, inside)
        for key, value in layer._arguments.values.items():
            # A list may be another one, since heads copy theirs; what it holds is the same.
            pairs = zip(*map(tf.nest.flatten, (inside._arguments.values[key], value)), strict=True)
            assert all(one is other for one, other in pairs), "copies in a program share objects"
            assert type(copied._arguments.values[key]) is type(value)


def check_a_model_is_saved_and_loaded(keras: Any, folder: pathlib.Path) -> None:
    """A file has the model, its tables and its optimizer: the loaded one predicts and trains alike.

    The numbers are the same to the bit: both run the same ops on the same values.
    """
    optimizer = keras.optimizers.Adam(0.1)
    model = models.make_model(keras, "functional", optimizer)
    strategy = tf.distribute.get_strategy()
    models.train(strategy, model, optimizer, "fit")
    path = str(folder / "model.keras")

    model.save(path)
    with keras.utils.custom_object_scope(FUNCTIONS):
        loaded = keras.models.load_model(path)

    assert models.layer_of(loaded).arithmetic == "keras"
    assert int(loaded.optimizer.iterations) == models.STEPS
    batches = models.dataset(models.GLOBAL_BATCH)
    for _ in range(2):
        for key, value in models.state_of(model).items():
            np.testing.assert_array_equal(value, models.state_of(loaded)[key], err_msg=key)
        answers = (each.predict(batches, verbose=0) for each in (model, loaded))
        np.testing.assert_array_equal(*answers)
        for each in (model, loaded):
            each.fit(batches, epochs=1, verbose=0)


def check_a_model_of_columns_is_saved_and_loaded(keras: Any, folder: pathlib.Path) -> None:
    """Raw features, columns, tables, the step and a cell come back, with equal predictions."""
    kinds = {each: classes._FACTORIES[each](keras) for each in classes._FACTORIES}
    plain = columns.PlainEmbedding(preprocessing.Hashed("city", 5), 2)
    inputs = {
        "user": keras.Input(shape=(1,), dtype="int64", name="user"),
        "city": keras.Input(shape=(1,), dtype="string", name="city"),
        "number": keras.Input(shape=(1,), dtype="float32", name="number"),
    }
    looked_up = kinds["ColumnEmbedding"]([user()], keras.optimizers.SGD(0.5), name="tables")
    net = looked_up(inputs)
    width = 4 + 2 + 1
    net = kinds["DenseFeatures"]([user(), plain, number()], name="features")(net)
    net = keras.layers.Reshape((1, width))(net)
    net = keras.layers.RNN(kinds["GRUCell"](3), name="rnn")(net)
    model = keras.Model(inputs, keras.layers.Dense(1)(net))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    features = {
        "user": tf.constant([[1], [6], [1]], tf.int64),
        "city": tf.constant([["Bern"], ["Rome"], [""]]),
        "number": tf.constant([[1.0], [2.0], [3.0]]),
    }
    batches = tf.data.Dataset.from_tensors((features, tf.ones([3, 1])))
    model.fit(batches, epochs=2, verbose=0)
    looked_up.step.assign(11)
    path = str(folder / "model.keras")

    model.save(path)
    with keras.utils.custom_object_scope(FUNCTIONS):
        loaded = keras.models.load_model(path)

    answers = (each.predict(batches, verbose=0) for each in (model, loaded))
    np.testing.assert_array_equal(*answers)
    assert int(loaded.get_layer("tables").step) == 11


def check_tables_of_tpu_arithmetic_are_refused(keras: Any, folder: pathlib.Path) -> None:
    """The error says what holds the tables; a file would lose them."""
    optimizer = keras.optimizers.Adagrad(0.1)
    model = models.make_model(keras, "functional", optimizer, arithmetic="tpu")

    with pytest.raises(errors.InvalidSpec, match=r"`\.keras`.*tf\.train\.Checkpoint"):
        model.save(str(folder / "model.keras"))


def main(name: str, folder: str) -> None:
    keras = importlib.import_module(name)
    for which in optimizers(keras):
        check_every_optimizer_is_written(keras, which)
    for number, check in enumerate(
        (
            check_every_public_layer_is_written,
            check_a_model_is_saved_and_loaded,
            check_a_model_of_columns_is_saved_and_loaded,
            check_tables_of_tpu_arithmetic_are_refused,
        )
    ):
        inside = pathlib.Path(folder, str(number))
        inside.mkdir()
        check(keras, inside)
        sys.stdout.write(f"{check.__name__}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
