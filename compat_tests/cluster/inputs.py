"""Trains on inputs of several kinds, which hosts read, and says which processes read them.

python inputs.py MODEL_DIR
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from estimator_bridge import estimator as est
from estimator_bridge.legacy import parameters

CORES, BATCH, ROWS, STEPS = 4, 16, 500, 6
MODES = est.tpu.InputPipelineConfig
fc, embedding, v1 = tf.feature_column, tf.compat.v1.tpu.experimental, tf.compat.v1

watched = fc.categorical_column_with_identity("watched", ROWS)
videos = embedding.embedding_column(watched, 8, initializer=v1.random_uniform_initializer(seed=5))


def samples(count: int) -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {
        "watched": random.integers(0, ROWS, [count, 5]),
        "label": random.normal(size=[count, 1]).astype(np.float32),
    }


def finished(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Returns batches of samples, each with the process that has made it."""

    def finish(rows: dict[str, Any]) -> Any:
        process = tf.strings.split([tf.io.read_file("/proc/self/stat")]).values[0]
        features = {
            "watched": tf.sparse.from_dense(rows["watched"]),
            "process": tf.strings.to_number(tf.repeat(process, size), tf.int32),
        }
        return features, rows["label"]

    return dataset.batch(size, drop_remainder=True).map(finish)


def the_same(params: dict[str, Any]) -> tf.data.Dataset:
    """Does not ask for the host, and is in another order on each."""
    dataset = tf.data.Dataset.from_tensor_slices(samples(96)).repeat()
    return finished(dataset.shuffle(96), params["batch_size"])


def sharded(params: dict[str, Any]) -> tf.data.Dataset:
    context = params["context"]
    dataset = tf.data.Dataset.from_tensor_slices(samples(96)).repeat()
    dataset = dataset.shard(context.num_hosts, context.current_host)
    return finished(dataset, params["batch_size"])


def in_python(params: dict[str, Any]) -> tf.data.Dataset:
    host = params["context"].current_host

    def generate() -> Iterator[dict[str, Any]]:
        rows = samples(96)
        while True:
            for number in range(host, 96, 2):
                yield {name: each[number] for name, each in rows.items()}

    signature = {
        "watched": tf.TensorSpec([5], tf.int64),
        "label": tf.TensorSpec([1], tf.float32),
    }
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return finished(dataset, params["batch_size"])


def ending(params: dict[str, Any]) -> tf.data.Dataset:
    """Ends on the second host first, in the fourth step."""
    host = params["context"].current_host
    count = 3 * BATCH // 2 + BATCH // CORES if host else 5 * BATCH
    return finished(tf.data.Dataset.from_tensor_slices(samples(count)), params["batch_size"])


KINDS: dict[str, tuple[Callable[..., tf.data.Dataset], int]] = {
    "the same": (the_same, MODES.PER_HOST_V1),
    "per core": (sharded, MODES.PER_HOST_V2),
    "in Python": (in_python, MODES.PER_HOST_V2),
    "ending": (ending, MODES.PER_HOST_V2),
}


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Returns a linear model with a moving average of the activations, which core 0 updates."""
    process = tf.identity(features["process"][0], "process")
    net = tf.compat.v1.feature_column.input_layer(features, [videos])
    average = v1.get_variable("average", [8], trainable=False, initializer=v1.zeros_initializer())
    update = average.assign_add(0.1 * (tf.reduce_mean(net, 0) - average))
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    kernel = v1.get_variable("kernel", [8, 1], initializer=v1.ones_initializer())
    loss = tf.reduce_mean((tf.matmul(net, kernel) - labels) ** 2)
    loss += 0.0 * tf.cast(process, tf.float32)  # or it would not be copied for the other cores
    if mode == "eval":
        return est.tpu.TPUEstimatorSpec(mode, loss=loss)
    optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return est.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


class Processes(v1.train.SessionRunHook):
    """Remembers the process that has read the batch of each core."""

    def begin(self) -> None:
        graph = v1.get_default_graph()
        names = ["process", *(f"core_{core}/process" for core in range(1, CORES))]
        self._tensors = [graph.get_tensor_by_name(f"{name}:0") for name in names]

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._tensors)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.processes = [int(process) for process in run_values.results]


def train(kind: str) -> dict[str, Any]:
    """Trains on an input, and may evaluate; returns the loss, and which processes have read."""
    input_fn, mode = KINDS[kind]
    job = est.tpu.TPUEstimator(
        model_fn,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        config=est.tpu.RunConfig(
            model_dir=os.path.join(sys.argv[1], kind),
            tf_random_seed=1,
            checkpoint_save_graph_def=False,
            tpu_config=est.tpu.TPUConfig(
                num_shards=CORES, iterations_per_loop=2, per_host_input_for_training=mode
            ),
        ),
        embedding_config_spec=est.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=[videos],
            optimization_parameters=parameters.StochasticGradientDescentParameters(0.1),
        ),
    )
    processes = Processes()
    job.train(input_fn, max_steps=STEPS, hooks=[processes])
    loss = float(job.evaluate(input_fn, steps=2)["loss"]) if kind == "per core" else None
    return {"processes": processes.processes, "process": os.getpid(), "loss": loss}


results = {kind: train(kind) for kind in KINDS}
sys.stdout.write(f"RESULT {json.dumps(results)}\n")
