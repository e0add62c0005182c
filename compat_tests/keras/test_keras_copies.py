"""Copies of models with the Keras layer, by `clone_model` and Keras's own files."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from compat_tests.programs import keras_models as models
from tf2_engine import errors

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
