"""Models in Keras's own files, clones, and the contents of the configs of layers and columns."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf2_engine
from compat_tests.programs import keras_models as models
from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from tf2_engine import errors, preprocessing
from tf2_engine.keras import columns, layer_settings


@pytest.mark.full
@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_files_of_keras(keras: str, tmp_path: pathlib.Path) -> None:
    """Files and JSON give back layers, models and training, of each Keras there is."""
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    arguments = ("compat_tests.programs.keras_files", keras, tmp_path)
    ran = fresh.module(*arguments, check=True, cwd=ROOT, env=environment)

    assert len(ran.stdout.split()) == 4


KERAS = {"tf.keras": tf.keras, "tf_keras": tf_keras}


def trained_model(name: str, arithmetic: str, form: str = "functional") -> Any:
    keras = KERAS[name]
    optimizer = keras.optimizers.Adagrad(0.1)
    model = models.make_model(keras, form, optimizer, arithmetic=arithmetic)
    models.train(tf.distribute.get_strategy(), model, optimizer, "eager")
    return model


NAMES = ["tf.keras", pytest.param("tf_keras", marks=pytest.mark.full)]


@pytest.mark.parametrize("arithmetic", ["tpu", "keras"])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_cloned(name: str, arithmetic: str) -> None:
    """A clone has the same settings and tables of its own, which start anew."""
    model = trained_model(name, arithmetic)

    with KERAS[name].utils.custom_object_scope({"kernel_start": models.kernel_start}):
        clone = KERAS[name].models.clone_model(model)

    one, other = models.layer_of(model), models.layer_of(clone)
    assert other.get_config() == one.get_config()
    assert other.arithmetic == arithmetic
    clone(next(iter(models.dataset(models.GLOBAL_BATCH)))[0])
    for key, table in models.tables_of(clone).items():
        np.testing.assert_array_equal(table, models.start()[key])
        assert np.abs(models.tables_of(model)[key] - table).max() > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_files_of_keras_hold_tables_that_are_variables(name: str, tmp_path: pathlib.Path) -> None:
    """`save_weights` and `load_weights` carry them; tables of "tpu" arithmetic are refused."""
    model, other = (
        trained_model(name, "keras", "subclass"),
        trained_model(name, "keras", "subclass"),
    )
    models.layer_of(other).trainable_variables[0].assign(
        tf.zeros_like(models.layer_of(other).trainable_variables[0])
    )
    path = str(tmp_path / "model.weights.h5")

    model.save_weights(path)
    other.load_weights(path)

    for key, table in models.tables_of(model).items():
        np.testing.assert_array_equal(models.tables_of(other)[key], table)
    with pytest.raises(errors.InvalidSpec, match=r"`save_weights`.*tf\.train\.Checkpoint"):
        trained_model(name, "tpu", "subclass").save_weights(path)


def test_what_a_file_cannot_hold_is_refused() -> None:
    """An object without a config is named, with what to do; so are unknown packages and classes."""
    setting = layer_settings.Setting({"table": object()}, "keras")
    with pytest.raises(errors.WrongType, match=r"<object object.*register_keras_serializable"):
        setting.get_config()
    with pytest.raises(errors.WrongType, match="Prepared, a namedtuple"):
        layer_settings.Setting(preprocessing.Prepared({}, None, {}), "keras").get_config()
    for value, message in (
        ({"package": "os", "config": {}}, "the package 'os'"),
        ({"class": "os.system", "settings": {}}, "unknown class 'os.system'"),
        ({"newer": 1}, r"contains \['newer'\].*the version that wrote it"),
    ):
        with pytest.raises(errors.InvalidSpec, match=message):
            layer_settings.Setting.from_config({"value": value, "objects": [], "package": "keras"})


@pytest.mark.parametrize(
    "column",
    [
        columns.Numeric("a", shape=[2, 3]),
        columns.SequenceNumeric("a", shape=[2], default_value=1.0),
        columns.Indicator(preprocessing.Identity("a", 4)),
        columns.PlainEmbedding(preprocessing.Sequence(preprocessing.Hashed("a", 4)), 2),
        columns.TableColumn(
            columns.embedding_column(preprocessing.Identity("a", 7), 4).table,
            preprocessing.Identity("a", 7),
        ),
    ],
    ids=lambda column: type(column).__name__,
)
def test_a_column_is_written(column: Any) -> None:
    """A column of each kind comes back from a file equal to what it was."""
    written = layer_settings.Setting([column], "keras").get_config()

    (copied,) = layer_settings.Setting.from_config(written).value

    assert type(copied) is type(column)
    assert layer_settings.Setting([copied], "keras").get_config() == written


@pytest.mark.parametrize(
    "make",
    [
        lambda kind: preprocessing.VocabularyList("b", kind(["x", "y"])),
        lambda kind: preprocessing.Bucketized("b", kind([0.0, 1.0])),
        lambda kind: preprocessing.Crossed(kind(["a", "b"]), 10),
        lambda kind: columns.Numeric("a", shape=kind([2, 3])),
        lambda kind: columns.SequenceNumeric("a", shape=kind([2, 3])),
        lambda kind: tf2_engine.FeatureSpec("f", "t", output_shape=kind([3, 2])),
        lambda kind: tf2_engine.EngineSpec(
            kind([tf2_engine.TableSpec("t", 3, 2, optimizer=tf2_engine.SGD(0.1))]),
            kind([tf2_engine.FeatureSpec("f", "t")]),
        ),
    ],
)
def test_lists_are_taken_where_tuples_are_kept(make: Callable[[Any], Any]) -> None:
    assert make(list) == make(tuple)


def test_a_text_is_no_list() -> None:
    with pytest.raises(errors.WrongType, match="VocabularyList: `vocabulary` must be a list"):
        preprocessing.VocabularyList("b", "x")  # type: ignore[arg-type]
