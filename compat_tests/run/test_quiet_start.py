"""Our commands hide the lines that TensorFlow logs when it starts, but nothing else."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from compat_tests.support.paths import ROOT
from estimator_bridge import quiet_start

NOISE = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795382755.350827    6793 port.cc:153] oneDNN custom operations are on. You may see
2026-11-22 20:00:00.1: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.
I0000 00:00:1795382755.351179    6793 cudart_stub.cc:31] Could not find cuda drivers on your machine
2026-11-22 20:00:00.1: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to
2026-11-22 20:00:00.1: I tensorflow/core/platform/cpu_feature_guard.cc:182] This binary is optimized
To enable the following instructions: AVX2, in other operations, rebuild TensorFlow
"""
KEPT = b"""\
Traceback (most recent call last):
  File "train.py", line 3: port.cc is a file
ImportError: libtensorflow.so: version `GLIBC_2.99' not found
no end of line"""


def test_only_lines_of_the_start_are_left_out() -> None:
    """Errors and lines of the program stay, byte by byte."""
    assert quiet_start.without_noise(NOISE + KEPT) == KEPT
    assert quiet_start.without_noise(KEPT.replace(b"no end", b"\xff")) == KEPT.replace(
        b"no end", b"\xff"
    )


@pytest.mark.full
@pytest.mark.parametrize("level", [None, "0"])
def test_commands_start_quietly(level: str | None) -> None:
    """A command that loads TensorFlow says nothing of it, unless the user set a log level."""
    environment = {key: value for key, value in os.environ.items() if key != quiet_start.LEVEL}
    if level is not None:
        environment[quiet_start.LEVEL] = level
    ran = subprocess.run(
        [sys.executable, "-m", "estimator_bridge", "doctor"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stderr
    assert "TensorFlow" in ran.stdout
    assert bool(re.search(r"port\.cc|cpu_feature_guard|InitializeLog", ran.stderr)) == bool(level)


def test_what_a_failing_import_says_is_shown(tmp_path: pathlib.Path) -> None:
    """An error while TensorFlow is loaded comes with what was written before."""
    program = r'''
import importlib.util, os, sys
from estimator_bridge import quiet_start

os.makedirs("tensorflow", exist_ok=True)
open("tensorflow/__init__.py", "w").write("""
import os
os.write(2, b'I0000 port.cc:1] noise\\nsaid\\n')
raise ImportError('broken')
""")
sys.path.insert(0, os.getcwd())
quiet_start.quieten()
assert importlib.util.find_spec("tensorflow")  # a command asks whether it is installed
import tensorflow
'''
    environment = {key: value for key, value in os.environ.items() if key != quiet_start.LEVEL}
    environment["PYTHONPATH"] = str(ROOT)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 1
    assert ran.stderr.startswith("said\nTraceback")
    assert "ImportError: broken" in ran.stderr
