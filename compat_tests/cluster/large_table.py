"""A TPUEstimator program with one table of a size that is given; it knows nothing of clusters.

python large_table.py MODEL_DIR STEPS ROWS
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from estimator_bridge import estimator as est
from estimator_bridge.legacy import parameters

model_dir, steps, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BATCH, DIM = 64, 64
fc, embedding = tf.feature_column, tf.compat.v1.tpu.experimental
column = embedding.embedding_column(fc.categorical_column_with_identity("ids", rows), DIM)


def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Returns batches of ids of the whole table."""
    random = np.random.default_rng(3)
    features = {"ids": random.integers(0, rows, [8 * BATCH, 4])}
    labels = random.normal(size=[8 * BATCH, 1]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Returns a linear model of the table's activations."""
    net = tf.compat.v1.feature_column.input_layer(features, [column])
    kernel = tf.compat.v1.get_variable("kernel", [DIM, 1])
    loss = tf.reduce_mean((tf.matmul(net, kernel) - labels) ** 2)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)
    optimizer = tf.compat.v1.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return est.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


class SayPhase(tf.compat.v1.train.SessionRunHook):
    """Prints a line when the session is there, and after each step."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Says that variables are restored, or have their first values."""
        self._say("READY")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._say("STEP")

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


est.tpu.TPUEstimator(
    model_fn,
    train_batch_size=BATCH,
    config=est.tpu.RunConfig(
        model_dir=model_dir,
        save_checkpoints_steps=1000,
        keep_checkpoint_max=1,
        tpu_config=est.tpu.TPUConfig(iterations_per_loop=1),
    ),
    embedding_config_spec=est.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=[column], optimization_parameters=parameters.AdagradParameters(0.1)
    ),
).train(input_fn, max_steps=steps, hooks=[SayPhase()])
