"""SavedModels of TensorFlow 2.15.1 load on every TensorFlow version and give the same answers."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.goldens import record_exports
from compat_tests.references import tolerance
from compat_tests.support import fresh

PROGRAM = """
import base64, json, sys
import tensorflow as tf
from compat_tests.goldens import record_exports
answers = {}
for name, recorded in json.loads(record_exports.ANSWERS.read_text()).items():
    examples = [base64.b64decode(text) for text in recorded["examples"]]
    answers[name] = record_exports.answers(record_exports.FOLDER / name, examples)
print(json.dumps({"keras": tf.keras.layers.Layer.__module__, "answers": answers}))
"""
# Networks of fewer than 64 terms a sum, with activations below 4, in another order of rounding.
ALLOWED = tolerance.allowed(n_terms=64, steps=0, scale=4.0)


@pytest.mark.whole
@pytest.mark.parametrize("legacy_keras", ["0", "1"])
def test_exports_of_2_15_answer_the_same(legacy_keras: str) -> None:
    """Models of TPUEstimator, canned estimators and Keras answer as before, beside any Keras."""
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": legacy_keras}
    ran = fresh.code(PROGRAM, env=environment, check=True)
    recorded = json.loads(record_exports.ANSWERS.read_text())
    printed = json.loads(ran.stdout.splitlines()[-1])
    answers = printed["answers"]

    if not tf.__version__.startswith("2.15."):
        assert printed["keras"].startswith("tf_keras") == (legacy_keras == "1")
    assert sorted(answers) == sorted(recorded)
    for name, expected in recorded.items():
        assert answers[name].keys() == expected["answers"].keys(), name
        for key, values in expected["answers"].items():
            np.testing.assert_allclose(
                answers[name][key], values, rtol=0, atol=ALLOWED, err_msg=f"{name}: {key}"
            )
