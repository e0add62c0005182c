"""The list of TensorFlow's public names, which commands use if TensorFlow is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.goldens import record_upgrades
from estimator_bridge.run import public_names

PROGRAM = """
import json, operator
from compat_tests.goldens import record_public_names
lines = [*record_public_names.lines()]
import tensorflow as tf
from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.run import public_names
found = []
def is_there(name):
    try:
        operator.attrgetter(name)(tf)
    except AttributeError:
        return False
    return True
def walk(module, path):
    for name, value in vars(module).items():
        is_listed_alone = not is_there(f"compat.v1.{path}{name}")
        if name.startswith("_") or path.count(".") > 2 or is_listed_alone:
            continue
        new = rules.counterpart(f"tensorflow.compat.v1.{path}{name}")
        found.append((path + name, new and new.name, new is None or is_there(new.name)))
        if isinstance(value, type(json)):
            walk(value, f"{path}{name}.")
walk(public_names.listed().compat.v1, "")
print(json.dumps([lines, found]))
"""


@pytest.fixture(scope="module")
def of_tensorflow() -> tuple[list[str], list[tuple[str, str | None, bool]]]:
    """The lines of the list now, and each name of version 1 with its counterpart."""
    # A process that imports TensorFlow itself: what it has depends on who imported it how.
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines, found = json.loads(ran.stdout)
    return lines, found


def test_the_list_has_the_names_of_tensorflow(of_tensorflow: Any) -> None:
    """The list is exactly what TensorFlow 2.21 has; other versions have nearly the same names."""
    recorded, now = public_names.LIST.read_text(), "".join(f"{line}\n" for line in of_tensorflow[0])
    if tf.__version__.startswith("2.21."):
        assert now == recorded, "run python -m compat_tests.goldens.record_public_names"
    names = [{word for word in text.split() if not word[-1].isdigit()} for text in (recorded, now)]
    assert len(names[0] & names[1]) > 0.8 * max(map(len, names))


def test_upgrades_are_those_of_tensorflow() -> None:
    """The recorded upgrades are what the tables of TensorFlow 2.21 say; 2.15 has some more."""
    recorded, now = public_names.UPGRADES.read_text().splitlines(), [*record_upgrades.lines()]
    if tf.__version__.startswith("2.21."):
        assert now == recorded, "run python -m compat_tests.goldens.record_upgrades"
    assert len({*recorded} & {*now}) > 0.9 * len(now)


def test_counterparts_exist_in_tensorflow(of_tensorflow: Any) -> None:
    """Each name that `migrate` writes for one of TensorFlow 1 is a name of TensorFlow."""
    _, found = of_tensorflow
    new = {name: written for name, written, _ in found if written is not None}
    assert len(found) > 2000
    assert len(new) > 1000
    assert new["string_to_hash_bucket_fast"] == "strings.to_hash_bucket_fast"
    assert [name for name, _, is_there in found if not is_there] == []
