"""The Keras layer compared with that of tensorflow-recommenders, whose results are recorded."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from compat_tests import goldens
from compat_tests.programs import keras_models as models
from compat_tests.programs import recommenders as program
from compat_tests.references.tolerance import allowed
from compat_tests.support.tiers import quick
from tf2_engine.keras import layer_for

IS_OLD = tf.__version__.startswith("2.15")
RECORDED: dict[str, Any] = json.loads(
    pathlib.Path(goldens.__file__).with_name("recommenders.json").read_text()
)


@pytest.mark.parametrize("name", quick(["Adam", "functional"], program.RUNS))
def test_its_programs_do_the_same_with_our_layer(name: str) -> None:
    """Tables, dense layers and predictions are the layer's, with the same legacy optimizer.

    Keras 2 all of them: `tf.keras` on 2.15, tf_keras later.
    """
    keras = tf.keras if IS_OLD else tf_keras
    results = program.run(name, layer_for(keras), keras)

    rounding = allowed(n_terms=40, steps=models.STEPS, scale=1.0)
    for key, expected in RECORDED[name].items():
        if key in models.start() and models.start()[key].shape == np.shape(expected):
            assert np.abs(expected - models.start()[key]).max() > 0.01
        # Adam divides by the root of few squares, which multiplies what is left of rounding; a
        # prediction is a sum of ten products.
        times = 80 if key == "outputs" else 10
        np.testing.assert_allclose(
            results[key], expected, rtol=0, atol=times * rounding, err_msg=key
        )


def test_every_program_is_recorded() -> None:
    assert list(RECORDED) == list(program.RUNS)
