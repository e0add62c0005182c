"""The list of TensorFlow's public names, which commands use where there is no TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from estimator_bridge.run import public_names

LINES = """
from compat_tests.goldens import record_public_names
print(*record_public_names.lines(), sep="\\n")
"""
ANSWERS = """
import json, sys
from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.run import keras_choice, public_names
keras_choice.use_legacy_keras()
listed = public_names.listed()
found = []
if sys.argv[1] == "listed":
    public_names.tensorflow = lambda: listed
def walk(module, path):
    for name, value in vars(module).items():
        if name.startswith("_") or path.count(".") > 2:
            continue
        short, tf = path + name, public_names.tensorflow()
        both = [hasattr(each, name) for each in (tf.compat.v1, tf)]
        found.append((short, rules.counterpart(f"tensorflow.compat.v1.{short}"), both))
        if isinstance(value, type(sys)):
            walk(value, f"{path}{name}.")
walk(listed.compat.v1, "")
print(json.dumps(found))
"""


def _output(program: str, *arguments: str) -> str:
    # A process that imports TensorFlow itself: what it has depends on who imported it how.
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


@pytest.mark.whole
def test_the_list_has_the_names_of_tensorflow() -> None:
    """The list is exactly what TensorFlow 2.21 has; other versions have nearly the same names."""
    recorded, now = public_names.LIST.read_text(), _output(LINES)
    if tf.__version__.startswith("2.21."):
        assert now == recorded, "run python -m compat_tests.goldens.record_public_names"
    names = [{word for word in text.split() if not word[-1].isdigit()} for text in (recorded, now)]
    assert len(names[0] & names[1]) > 0.8 * max(map(len, names))


def test_rules_answer_by_the_list_as_by_tensorflow() -> None:
    """`migrate` finds the same names unchanged, renamed, or with other arguments, with the list."""
    listed, real = (json.loads(_output(ANSWERS, kind)) for kind in ("listed", "real"))
    assert len(listed) > 2000
    assert sum(changed is not None for *_, changed in listed) > 100
    different = [pair for pair in zip(listed, real, strict=True) if pair[0] != pair[1]]
    if tf.__version__.startswith("2.21."):
        assert not different
    else:
        assert len(different) < 0.1 * len(listed)
