"""The preprocessing layer in Keras models: training, serving and copies with raw features."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tf2_engine import preprocessing
from tf2_engine.keras import exportable, layer_for, preprocessing_for

EMB = tf.tpu.experimental.embedding
KERAS = {"tf.keras": tf.keras, "tf_keras": tf_keras}
ROWS, DIM, LENGTH = 12, 3, 2


def columns(folder: pathlib.Path) -> dict[str, preprocessing.Column]:
    words = folder / "words.txt"
    words.write_text("red\ngreen\nblue\n")
    price = preprocessing.Bucketized("price", (1.0, 5.0))
    user = preprocessing.Identity("user", ROWS, default_value=0)
    return {
        "bucketized": price,
        "crossed": preprocessing.Crossed(("city", price), ROWS),
        "file": preprocessing.VocabularyFile("color", str(words), 3, num_oov_buckets=2),
        "hashed": preprocessing.Hashed("city", ROWS),
        "identity": user,
        "list": preprocessing.VocabularyList("city", ("Bern", "Rome"), num_oov_buckets=1),
        "sequence": preprocessing.Sequence(preprocessing.Hashed("visits", ROWS)),
        "weighted": preprocessing.Weighted(preprocessing.Hashed("tags", ROWS), "amounts"),
    }


def features() -> dict[str, Any]:
    return {
        "amounts": tf.sparse.from_dense([[0.5, 2.0], [1.0, 0.0], [3.0, 1.0]]),
        "city": tf.constant(["Rome", "Bern", "Oslo"]),
        "color": tf.constant([["red", "pink"], ["blue", ""], ["green", "red"]]),
        "price": tf.constant([[0.5], [2.0], [7.0]]),
        "tags": tf.sparse.from_dense([["a", "b"], ["c", ""], ["a", "c"]]),
        "user": tf.constant([3, 99, 5], tf.int64),
        "visits": tf.constant([["x", "y"], ["z", ""], ["", ""]]),
    }


def inputs(keras: Any) -> dict[str, Any]:
    kinds = {
        "amounts": ((None,), "float32", True),
        "city": ((), "string", False),
        "color": ((2,), "string", False),
        "price": ((1,), "float32", False),
        "tags": ((None,), "string", True),
        "user": ((), "int64", False),
        "visits": ((2,), "string", False),
    }
    return {
        key: keras.Input(shape=shape, dtype=dtype, sparse=sparse, name=key)
        for key, (shape, dtype, sparse) in kinds.items()
    }


def feature_config(keys: Any) -> dict[str, Any]:
    start = np.random.default_rng(5).normal(size=(ROWS, DIM)).astype("f4")
    table = EMB.TableConfig(ROWS, DIM, tf.constant_initializer(start), combiner="sum", name="all")
    return {
        key: EMB.FeatureConfig(table, LENGTH if key == "sequence" else 0, name=key) for key in keys
    }


@pytest.mark.full
@pytest.mark.parametrize("name", KERAS)
def test_raw_features_go_into_a_model(name: str, tmp_path: pathlib.Path) -> None:
    """Every kind of column feeds a functional model, which trains, predicts and is exported."""
    keras, kinds = KERAS[name], columns(tmp_path)
    raw_inputs = inputs(keras)
    prepared = preprocessing_for(keras)(kinds, name="raw")(raw_inputs)
    layer = layer_for(keras)(feature_config(kinds), keras.optimizers.SGD(0.1), name="tables")
    activations = layer(prepared["ids"], prepared["weights"])
    flat = [keras.layers.Flatten()(activations[key]) for key in sorted(activations)]
    scores = keras.layers.Dense(1)(keras.layers.Concatenate()(flat))
    model = keras.Model(raw_inputs, scores)

    wanted = preprocessing.Preprocessing(kinds)(features())
    outputs = model.get_layer("raw")(features())
    assert set(outputs["weights"]) == {"weighted"}
    assert set(outputs["lengths"]) == {"sequence"}
    pairs = [(outputs["ids"][key], wanted.ids[key]) for key in kinds]
    assert wanted.weights is not None
    pairs.append((outputs["weights"]["weighted"], wanted.weights["weighted"]))
    for ours, theirs in pairs:
        for part in ("indices", "values", "dense_shape"):
            np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part))
    np.testing.assert_array_equal(outputs["lengths"]["sequence"], wanted.lengths["sequence"])

    before = model(features()).numpy()
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    batches = tf.data.Dataset.from_tensors((features(), tf.ones([3, 1])))
    model.fit(batches, epochs=2, verbose=0)
    after = model.predict(batches, verbose=0)
    assert np.abs(after - before).max() > 1e-3

    @tf.function(
        input_signature=[{key: tf.type_spec_from_value(x) for key, x in features().items()}]
    )
    def serve(raw: Any) -> Any:
        return {"scores": model(raw)}

    module = exportable(model)
    module.serve = serve
    tf.saved_model.save(module, str(tmp_path / "export"))
    loaded = tf.saved_model.load(str(tmp_path / "export"))
    # The same ops; matrix products of exports may be fused otherwise: three roundings of sums of
    # 27 products below 4.
    answer = loaded.serve(features())["scores"]
    np.testing.assert_allclose(answer, after, rtol=0, atol=27 * 3 * 4 * 2.0**-24)


@pytest.mark.parametrize("name", KERAS)
def test_what_a_model_holds_besides_layers_is_exported(name: str, tmp_path: pathlib.Path) -> None:
    """Preprocessing, tables and variables are found in attributes, lists and inner models."""
    keras = KERAS[name]
    words = tmp_path / "words.txt"
    words.write_text("red\ngreen\n")
    make_table = tf.lookup.KeyValueTensorInitializer(["red"], [10.0])

    class Inner(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.of_files = [
                preprocessing.Preprocessing(
                    {"id": preprocessing.VocabularyFile("color", str(words), 2)}
                )
            ]

        def call(self, colors: Any) -> Any:
            (prepare,) = self.of_files
            ids = tf.sparse.to_dense(prepare({"color": colors}).ids["id"])
            return tf.cast(ids, tf.float32)[:, 0]

    class Outer(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()
            self.by_name = {"table": tf.lookup.StaticHashTable(make_table, 0.0)}
            self.bias = tf.Variable(100.0)

        def call(self, colors: Any) -> Any:
            return self.inner(colors) + self.by_name["table"].lookup(colors) + self.bias

    model = Outer()
    serve = tf.function(
        lambda colors: {"sum": model(colors)}, input_signature=[tf.TensorSpec([None], tf.string)]
    )
    tf.saved_model.save(exportable(model), str(tmp_path / "saved"), signatures=serve)
    words.unlink()

    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    assert served(tf.constant(["red", "green"]))["sum"].numpy().tolist() == [110.0, 101.0]
    assert [each.name for each in (tmp_path / "saved" / "assets").iterdir()] == ["words.txt"]
