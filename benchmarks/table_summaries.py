"""What statistics of tables cost: `python -m benchmarks.table_summaries`.

Measures CPU time, which other work on the machine changes little: of a training step of the engine
without statistics, of one with them that is not due, and of one that is.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import tensorflow as tf

import tf2_engine
from tf2_engine.summaries.recorder import StatisticsRecorder
from tf2_engine.summaries.writing import EVERY


def make_step(args: argparse.Namespace) -> tuple[tf2_engine.TPUEmbedding, Callable[[], object]]:
    """Returns an engine and a function that trains a step on it."""
    names = [f"t{number}" for number in range(args.tables)]
    tables = [
        tf2_engine.TableSpec(name, args.rows, args.dim, "sum", tf2_engine.Adagrad(0.1))
        for name in names
    ]
    features = [tf2_engine.FeatureSpec(name, name) for name in names]
    engine = tf2_engine.TPUEmbedding(tf2_engine.EngineSpec(tables, features))
    batches = tf.data.Dataset.from_tensors(
        {name: tf.random.uniform([args.batch], 0, args.rows, tf.int64) for name in names}
    )
    iterator = iter(batches.repeat())

    def train() -> object:
        activations, update = engine.differentiable_lookup(next(iterator))
        update({name: 0.001 * value for name, value in activations.items()})
        return tf.add_n([value[0, 0] for value in activations.values()])

    return engine, train


def cpu_time(function: Callable[[], object], times: int) -> list[float]:
    """Returns the CPU milliseconds of each call."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        function()
        taken.append(1e3 * (time.process_time() - began))
    return taken


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("tables", 8), ("rows", 100_000), ("dim", 32), ("batch", 4096)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    engine, train = make_step(args)
    plain = tf.function(train, autograph=False)
    plain()
    recorder = StatisticsRecorder(engine, 1 << 40)
    idle = tf.function(train, autograph=False)
    idle()
    always = StatisticsRecorder(engine, 1)
    due = tf.function(train, autograph=False)
    due()
    always.read()
    times: dict[str, list[float]] = {"plain": [], "not due": [], "due": [], "read": []}
    for _ in range(args.steps // 10):  # in turn, so that all have the same machine
        times["plain"] += cpu_time(plain, 10)
        times["not due"] += cpu_time(idle, 10)
        times["due"] += cpu_time(due, 1)
        times["read"] += cpu_time(always.read, 1)
    recorder.stop()
    middle = {name: statistics.median(values) for name, values in times.items()}
    for name, value in middle.items():
        print(f"{name:8s}{value:9.3f} ms of CPU")
    per_step = middle["not due"] - middle["plain"]
    share = (per_step + (middle["due"] - middle["plain"] + middle["read"]) / EVERY) / middle[
        "plain"
    ]
    print(f"with {EVERY} steps from one record to the next: {100 * share:.2f} % of a step")


if __name__ == "__main__":
    main()
