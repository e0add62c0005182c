"""Trains and saves, or restores, a table of more than 2^31 elements; prints its use of memory.

python -m compat_tests.programs.large_table save|restore CHECKPOINT
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

# The allocator of oneDNN takes twice the memory that is requested.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding

ROWS, DIM = 2**28 + 3, 8
"""2^31 + 24 elements, 8.6 GB."""

IDS = [0, ROWS - 1, ROWS - 1, 2**28]
GRADIENT = np.arange(4 * DIM, dtype=np.float32).reshape(4, DIM)
TRAINED = {
    0: -0.5 * GRADIENT[0],
    ROWS - 1: -0.5 * (GRADIENT[1] + GRADIENT[2]),
    2**28: -0.5 * GRADIENT[3],
    ROWS - 2: np.zeros(DIM),
}
"""Rows after a step of SGD from zeros; the last is untouched. Halves of whole numbers are exact."""


def zeros(shape: Any, dtype: Any) -> tf.Tensor:
    """Initializes the table without a second copy of it in memory."""
    return tf.zeros(shape, dtype)


def check(engine: TPUEmbedding) -> None:
    """Checks looked-up rows, and that an id beyond the table is refused."""
    engine.enqueue({"ids": tf.constant(list(TRAINED), tf.int64)}, training=False)
    np.testing.assert_array_equal(engine.dequeue()["ids"], np.stack(list(TRAINED.values())))
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(ROWS)):
        engine.enqueue({"ids": tf.constant([0, 0, 0, ROWS], tf.int64)})


def main(part: str, path: str) -> None:
    table = TableSpec("table", ROWS, DIM, "sum", SGD(0.5), zeros)
    engine = TPUEmbedding(EngineSpec((table,), (FeatureSpec("ids", "table"),)))
    engine.build_for([(len(IDS),)])
    checkpoint = tf.train.Checkpoint(embedding=engine)
    if part == "save":
        engine.enqueue({"ids": tf.constant(IDS, tf.int64)})
        engine.dequeue()
        engine.apply_gradients({"ids": tf.constant(GRADIENT)})
        check(engine)
        checkpoint.write(path)
    else:
        checkpoint.read(path).assert_consumed()
        check(engine)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sys.stdout.write(f"{part}: {peak:.1f} GiB at most\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
