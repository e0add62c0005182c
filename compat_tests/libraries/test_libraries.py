"""Libraries based on tf.estimator train under `run` on TensorFlow versions without estimators."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from compat_tests.libraries import program


@pytest.mark.full
@pytest.mark.parametrize("library", program.LIBRARIES)
def test_a_library_trains(library: str, tmp_path: pathlib.Path) -> None:
    """Its estimator trains and evaluates, predicts or exports, and gets better by training."""
    command = [sys.executable, "-m", "estimator_bridge", "run", program.__file__, library]
    ran = subprocess.run(
        [*command, str(tmp_path / "model")], capture_output=True, text=True, cwd=tmp_path
    )

    assert ran.returncode == 0, ran.stderr[-4000:]
    result = json.loads((tmp_path / "model" / "result.json").read_text())
    before, after = result["measures"]
    assert after < before
    assert result["is_used"]
