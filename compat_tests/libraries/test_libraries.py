"""Libraries that are built on tf.estimator train under `run` where TensorFlow has no estimators."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

PROGRAMS = sorted(pathlib.Path(__file__).parent.glob("*_program.py"))


@pytest.mark.full
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_library_trains(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Its estimator trains, evaluates and predicts or exports, and gets better by training."""
    command = [sys.executable, "-m", "estimator_bridge", "run", program, tmp_path / "model"]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads(ran.stdout.splitlines()[-1])["better"], ran.stdout
