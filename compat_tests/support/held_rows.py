"""Checkpoints and exports with the values that tables have after rounding to small types."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf2_engine import small_types

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


def held(rows: np.ndarray, table_dtype: str) -> np.ndarray:
    """Rounds rows to a type, and returns them as a lookup reads them: float32."""
    stored = small_types.encode(rows, table_dtype, "The table")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        decoded: np.ndarray = session.run(small_types.decode(tf.constant(stored)))
    return decoded


def with_held_rows(checkpoint: str, path: str, tables: Collection[str], table_dtype: str) -> str:
    """Copies a checkpoint, with the tables (given by key) rounded to a type; returns `path`."""
    reader = tf.train.load_checkpoint(checkpoint)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert set(tables) <= set(values), sorted(values)
    values |= {name: held(values[name], table_dtype) for name in tables}
    with tf.init_scope():
        tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=list(values),
            shape_and_slices=[""] * len(values),
            tensors=[tf.constant(value) for value in values.values()],
        )
    return path


def served(
    paths: Iterable[Any], features: Mapping[str, Any], folder: Any
) -> list[dict[str, np.ndarray]]:
    """Queries exports in a process that imports only TensorFlow, and returns each one's outputs."""
    inputs, outputs = os.path.join(folder, "given.npy"), os.path.join(folder, "found.npy")
    np.save(inputs, np.array(dict(features), object), allow_pickle=True)
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOADER, inputs, outputs, *map(os.fsdecode, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return list(np.load(outputs, allow_pickle=True))


def stored(path: Any) -> dict[str, tuple[list[int], str]]:
    """Maps the key of each variable of an export to the variable's shape and dtype."""
    reader = tf.train.load_checkpoint(os.path.join(os.fsdecode(path), "variables/variables"))
    dtypes = reader.get_variable_to_dtype_map()
    return {
        name: (shape, dtypes[name].name)
        for name, shape in reader.get_variable_to_shape_map().items()
        if dtypes[name] != tf.string
    }
