"""Many steps do not cause a new trace for each new length, and memory does not grow."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding

ROWS, DIM, BATCH, LONGEST = 1000, 16, 32, 40
STEPS, WARM_UP = 5000, 1000
MEMORY = 16 * 2**20
"""The growth of memory that is allowed after the warm-up, in bytes. A batch that is kept, or an op
that is added, in each step takes more: the ids, cells and gains of a batch are 32 kB on average."""

SPEC = EngineSpec(
    (
        TableSpec("users", ROWS, DIM, "mean", Adagrad(0.1)),
        TableSpec("items", ROWS, DIM, "sqrtn", Adagrad(0.1)),
    ),
    (
        FeatureSpec("sparse", "users"),
        FeatureSpec("sequence", "users", max_sequence_length=5),
        FeatureSpec("ragged", "items"),
        FeatureSpec("ragged_sequence", "items", max_sequence_length=5),
        FeatureSpec("open", "items", output_shape=(BATCH, 2)),
    ),
)


def a_batch(chance: np.random.Generator, most: int) -> dict[str, Any]:
    """Returns a batch whose samples have up to so many ids; some have none."""
    batch: dict[str, Any] = {}
    for name in ("sparse", "sequence", "ragged", "ragged_sequence", "open"):
        rows = BATCH if name != "open" else (BATCH, 2 * BATCH)[int(chance.integers(2))]
        lengths = chance.integers(0, most + 1, rows)
        ids = tf.constant(chance.integers(0, ROWS, lengths.sum()), tf.int64)
        ragged = tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)
        batch[name] = ragged.to_sparse() if name in ("sparse", "sequence") else ragged
    return batch


def signature() -> dict[str, Any]:
    """Returns the types of a batch's tensors, with the sizes that all batches share."""
    sparse, ragged = (
        kind([BATCH, None], tf.int64) for kind in (tf.SparseTensorSpec, tf.RaggedTensorSpec)
    )
    of_names = {"sparse": sparse, "sequence": sparse, "ragged": ragged, "ragged_sequence": ragged}
    return {**of_names, "open": tf.RaggedTensorSpec([None, None], tf.int64)}


class Model:
    """An engine in a training loop.

    Attributes:
        traces: how often its step was traced.
    """

    def __init__(self) -> None:
        self.engine = TPUEmbedding(SPEC)
        self.traces = 0
        self.step: Callable[[Any], Any] = tf.function(self._step, input_signature=[signature()])

    def _step(self, features: Any) -> Any:
        self.traces += 1
        self.engine.enqueue(features)
        activations = self.engine.dequeue()
        self.engine.apply_gradients(tf.nest.map_structure(lambda value: 0.01 * value, activations))
        return tf.add_n([tf.reduce_sum(value) for value in activations.values()])


def memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_new_lengths_cause_no_new_trace() -> None:
    """Fifty batches of every length, the empty one among them, share one trace."""
    chance, model = np.random.default_rng(0), Model()
    for number in range(50):
        model.step(a_batch(chance, number % LONGEST))
    assert model.traces == 1


@pytest.mark.full
def test_five_thousand_steps() -> None:
    """Over 5,000 steps of changing lengths there is one trace, and memory does not grow."""
    chance, model = np.random.default_rng(0), Model()
    readings = []
    for number in range(STEPS):
        total = model.step(a_batch(chance, int(chance.integers(0, LONGEST))))
        assert np.isfinite(total), f"step {number}"
        if number + 1 >= WARM_UP and (number + 1) % 500 == 0:
            readings.append(memory())
    assert model.traces == 1
    growth = readings[-1] - readings[0]
    assert growth < MEMORY, f"{growth / 2**20:.1f} MiB more after step {WARM_UP}: {readings}"
