"""Asks SavedModels in a process that imports TensorFlow alone."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from compat_tests.support import fresh

LOADER = """
import sys
import numpy as np, tensorflow as tf
arrays = np.load(sys.argv[1], allow_pickle=True).item()
given = {key: tf.constant(value) for key, value in arrays.items()}
results = []
for path in sys.argv[3:]:
    found = tf.saved_model.load(path).signatures["serving_default"](**given)
    results.append({key: value.numpy() for key, value in found.items()})
np.save(sys.argv[2], results)
ours = [name for name in sys.modules if name.split(".")[0] in ("tf2_engine", "estimator_bridge")]
assert not ours, ours
"""


def served(
    paths: Iterable[Any], features: Mapping[str, Any], folder: pathlib.Path
) -> list[dict[str, np.ndarray]]:
    """Returns the outputs of each export for the same features.

    Args:
        features: arrays by the name of the input; texts are arrays of objects.
        folder: where the process gets and leaves its arrays.
    """
    inputs, outputs = folder / "given.npy", folder / "found.npy"
    np.save(inputs, np.array(dict(features), object), allow_pickle=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    arguments = [inputs, outputs, *map(os.fsdecode, paths)]
    fresh.code(LOADER, *arguments, check=True, cwd=folder, env=environment)
    return list(np.load(outputs, allow_pickle=True))
