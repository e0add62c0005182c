"""Measures the overhead of a TPUEstimator's step with a small model and default settings.

    python -m benchmarks.small_child <stock|bridge> <host|engine> [steps to warm up]

Answers each line "train N" with the total time of N steps in ms, including the hooks, summaries and
log lines of a default RunConfig.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import tensorflow.compat.v1 as tf

from benchmarks.child import THREADS, answer, commands

BATCH = 32
ROWS = 1000
WARM_UP = 300


def main() -> None:
    whose, where, *warm_up = sys.argv[1:]
    if whose == "stock":
        from tensorflow.compat.v1 import estimator
        from tensorflow.compat.v1.tpu import experimental as parameters
    else:
        from estimator_bridge import estimator
        from estimator_bridge.legacy import parameters
    columns = [
        tf.tpu.experimental.embedding_column(
            tf.feature_column.categorical_column_with_identity(key, ROWS), 8, combiner="mean"
        )
        for key in ("user", "item")
    ]

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        net = tf.keras.layers.DenseFeatures(columns)(features)
        net = tf.keras.layers.Dense(16, activation="relu")(net)
        logits = tf.keras.layers.Dense(1)(net)
        loss = tf.losses.sigmoid_cross_entropy(labels, logits)
        optimizer = tf.train.AdagradOptimizer(0.05)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    config = estimator.tpu.RunConfig(
        model_dir=tempfile.mkdtemp(),
        session_config=tf.ConfigProto(
            intra_op_parallelism_threads=THREADS,
            inter_op_parallelism_threads=THREADS,
            allow_soft_placement=True,
        ),
    )
    job = estimator.tpu.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=where == "engine",
        params={},
        train_batch_size=BATCH,
        embedding_config_spec=estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns,
            optimization_parameters=parameters.AdagradParameters(0.05),
        ),
    )
    per_call = config.tpu_config.iterations_per_loop if where == "engine" else 1
    asked = Asked(per_call, int(warm_up[0]) if warm_up else WARM_UP)
    job.train(input_fn, hooks=[asked], steps=10**9)


class Asked(tf.train.SessionRunHook):
    """Makes training wait for requests, and reports the total time of the requested steps.

    Args:
        per_call: the number of steps between two calls of the hook.
        warm_up: the number of steps to run first.
    """

    def __init__(self, per_call: int, warm_up: int) -> None:
        self._per_call = per_call
        self._commands = commands()
        self._left, self._warm = warm_up, False
        self._started = 0.0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._left -= self._per_call
        if self._left > 0:
            return
        if self._warm:
            answer([1e3 * (time.perf_counter() - self._started)])
        self._warm = True
        try:
            _, self._left = next(self._commands)
        except StopIteration:
            run_context.request_stop()
        self._started = time.perf_counter()


def input_fn(params: Any) -> Any:
    """Returns a dataset that repeats one batch forever."""
    rows = tf.range(BATCH, dtype=tf.int64)
    places = tf.stack([rows, tf.zeros_like(rows)], 1)
    features = {
        key: tf.SparseTensor(places, rows * factor % ROWS, [BATCH, 1])
        for key, factor in (("user", 7), ("item", 31))
    }
    labels = tf.cast(rows[:, tf.newaxis] % 2, tf.float32)
    return tf.data.Dataset.from_tensors((features, labels)).cache().repeat()


if __name__ == "__main__":
    main()
