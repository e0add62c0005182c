"""Canned estimators as Keras models: the numbers, and what is refused."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from compat_tests.programs import canned_as_keras

# Eight steps, of which each rounds an element of a variable, or of what a metric is computed
# from, up to 32 times: see docs/numerics.md.
ROUNDINGS = canned_as_keras.END - canned_as_keras.BEGIN
TOLERANCE = ROUNDINGS * 32 * 2.0**-24


@pytest.mark.full
def test_a_canned_estimator_and_its_keras_form_go_on_alike(tmp_path: pathlib.Path) -> None:
    """From one converted checkpoint they have the same variables, metrics and predictions.

    All of them: the checkpoints have the same keys, too.
    """
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", canned_as_keras.__name__, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
    )
    results = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [each["name"] for each in results] == canned_as_keras.NAMES, ran.stderr[-4000:]
    for each in results:
        (largest, name), *_ = each["worst"]
        assert largest <= TOLERANCE, (each["name"], name, largest)
        assert each["moved"] > 3, each["name"]
