"""Trains the engine's Keras layer with `fit` on packed batches, on request.

    python -m benchmarks.keras_child <workload> <steps per execution>

The gradients of activations are constants, as in the session of `engine_child`, so only the layer
does any work. Answers each line "train N" with N numbers, one for each of N executions: the time
per step in ms, from the end of the previous execution, including what `fit` does between the two.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf

import tf2_engine.keras
from benchmarks import engine_child
from benchmarks.child import THREADS, answer, commands
from benchmarks.workloads import Workload, find

WARM_UP = 8


def main() -> None:
    workload, together = find(sys.argv[1]), int(sys.argv[2])
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    model = GivenGradients(workload)
    model.compile(steps_per_execution=together)
    data = _batches(workload, model.embedding)
    train(model, data, WARM_UP, together)
    for _, count in commands():
        answer(train(model, data, count, together))


class GivenGradients(tf.keras.Model):
    """A model that consists of an embedding layer; its activations get constant gradients."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        initializer = tf.random_uniform_initializer(-0.5, 0.5)
        config = tf.tpu.experimental.embedding
        features = {
            f"f{i}": config.FeatureConfig(
                config.TableConfig(
                    workload.rows, workload.dim, initializer, combiner="sum", name=f"t{i}"
                )
            )
            for i in range(workload.tables)
        }
        self.embedding = tf2_engine.keras.TPUEmbedding(features, tf2_engine.Adagrad(0.1))
        sent = engine_child.gradients_of(workload)
        self._sent = {name: tf.constant(value) for name, value in sent.items()}

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            activations = self.embedding(data[0])
        tape.gradient(activations, self.trainable_variables, output_gradients=self._sent)
        return {"one": engine_child.number_after(activations)}


class _Ends(tf.keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(1e3 * time.perf_counter())


def train(model: Any, data: Any, executions: int, together: int) -> list[float]:
    """Returns the time per step in ms of each execution after the first, in which `fit` starts."""
    ends = _Ends()
    model.fit(data, steps_per_epoch=(executions + 1) * together, verbose=0, callbacks=[ends])
    return [(after - before) / together for before, after in itertools.pairwise(ends.times)]


def _batches(workload: Workload, layer: Any) -> Any:
    packed = [
        layer.pack(engine_child.features_of(workload, list(map(tf.constant, arrays))))
        for arrays in engine_child.inputs_of(workload)
    ]
    data = tf.data.Dataset.from_tensors((packed[0],))
    for batch in packed[1:]:
        data = data.concatenate(tf.data.Dataset.from_tensors((batch,)))
    return data.repeat()


if __name__ == "__main__":
    main()
