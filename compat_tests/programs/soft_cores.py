"""Trains stock's TPUEmbedding on software cores: `soft_cores.py THREADS CORES`."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

THREADS, CORES = (int(argument) for argument in sys.argv[1:])
tf.config.threading.set_inter_op_parallelism_threads(THREADS)

from compat_tests.support import fake_tpu  # noqa: E402 - the threads come before anything else
from tf2_engine import soft_tpu  # noqa: E402

CONFIG = tf.tpu.experimental.embedding
strategy = soft_tpu.SoftTPUStrategy(CORES)
with fake_tpu.stock_runs(), strategy.scope():
    table = CONFIG.TableConfig(10, 2, name="words")
    embedding = CONFIG.TPUEmbedding(
        {"word": CONFIG.FeatureConfig(table)},
        fake_tpu.stock_optimizer("Adagrad", learning_rate=0.1),
    )
    embedding.build(4)
    steps = tf.Variable(0)


@tf.function(autograph=False)
def step(ids: Any) -> None:
    """Trains on one batch per core, and sums over cores before and after."""
    embedding.enqueue(ids)

    def core() -> None:
        context = tf.distribute.get_replica_context()
        activations = embedding.dequeue()
        mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_sum(activations["word"]))
        embedding.apply_gradients({"word": activations["word"] * mean})
        one = context.all_reduce(tf.distribute.ReduceOp.SUM, 1)
        steps.assign_add(one // CORES)

    strategy.run(core)


for number in range(20):
    step({"word": fake_tpu.distribute(strategy, [tf.range(4) + number % 6] * CORES)})
print(f"{int(steps.read_value())} steps")  # noqa: T201 - for the test that runs this
