"""The cost of the statistics of tables: `python -m benchmarks.table_summaries [--on estimator]`.

Measures CPU time, which other work on the machine changes little: of a training step of the engine
without statistics, of one with them that is not due, and of one that is. On an estimator a step is
that of a session, with `TableSummaryHook` and the hooks that each training has.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tf2_engine
from estimator_bridge import estimator
from estimator_bridge.hooks import TableSummaryHook
from estimator_bridge.legacy import parameters, table_config
from tf2_engine.summaries.statistics import EVERY, StatisticsRecorder

v1 = tf.compat.v1

TURNS = 15
"""Trainings of each kind on an estimator: one differs from the next by some percent."""


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


def make_estimator(args: argparse.Namespace, directory: str) -> estimator.tpu.TPUEstimator:
    """Returns a TPUEstimator whose model is a sum of the activations of the same tables."""
    names = [f"t{number}" for number in range(args.tables)]

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        weight = v1.get_variable("weight", [], initializer=v1.ones_initializer())
        loss = 0.001 * weight * tf.add_n([tf.reduce_sum(features[name]) for name in names])
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return estimator.tpu.TPUEstimator(
        model_fn,
        config=estimator.tpu.RunConfig(
            model_dir=directory,
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            tpu_config=estimator.tpu.TPUConfig(iterations_per_loop=1),
        ),
        train_batch_size=args.batch,
        embedding_config_spec=estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_to_config_dict={name: table_config.FeatureConfig(name) for name in names},
            table_to_config_dict={
                name: table_config.TableConfig(args.rows, args.dim, combiner="sum")
                for name in names
            },
            optimization_parameters=parameters.AdagradParameters(0.1),
        ),
    )


class StepTimes(v1.train.SessionRunHook):
    """Keeps the CPU milliseconds from the end of one call of the session to that of the next."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._ended: float | None = None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Keeps that of a step; the first one has the start in it."""
        now = time.process_time()
        if self._ended is not None:
            self.taken.append(1e3 * (now - self._ended))
        self._ended = now


def on_estimator(args: argparse.Namespace) -> None:
    """Prints the figures of trainings with and without the hook, in turn."""
    names = [f"t{number}" for number in range(args.tables)]

    def input_fn(params: Any) -> Any:
        place = tf.stack([tf.range(args.batch, dtype=tf.int64), tf.zeros(args.batch, tf.int64)], 1)
        ids = {
            name: tf.SparseTensor(
                place, tf.random.uniform([args.batch], 0, args.rows, tf.int64), [args.batch, 1]
            )
            for name in names
        }
        return tf.data.Dataset.from_tensors((ids, 0.0)).repeat()

    kinds: dict[str, int | None] = {"plain": None, "not due": 1 << 40, "due": 1}
    turns: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as directory:
        for turn in range(TURNS):
            # What warms up, or slows down, from one training to the next meets each kind alike.
            for name in sorted(kinds, reverse=bool(turn % 2)):
                place, every = f"{directory}/{turn} {name}", kinds[name]
                job, seen = make_estimator(args, place), StepTimes()
                hooks = [] if every is None else [TableSummaryHook(place, every)]
                steps = args.steps // (10 if name == "due" else 1) + 3
                job.train(input_fn, hooks=[seen, *hooks], steps=steps)
                turns[name].append(statistics.median(seen.taken[2:]))  # the first step writes
    for name, values in turns.items():
        print(f"{name:8s}{statistics.median(values):9.3f} ms of CPU")
    shares = [
        (not_due - plain + (due - plain) / EVERY) / plain
        for plain, not_due, due in zip(*turns.values(), strict=True)
    ]
    low, middle, high = (100 * share for share in statistics.quantiles(shares, n=4))
    print(
        f"with {EVERY} steps from one record to the next: {middle:.2f} % of a step"
        f" (a half of {TURNS} trainings: {low:.2f} to {high:.2f})"
    )


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("tables", 8), ("rows", 100_000), ("dim", 32), ("batch", 4096)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--on", choices=("engine", "estimator"), default="engine")
    args = parser.parse_args()
    if args.on == "estimator":
        on_estimator(args)
    else:
        on_engine(args)


def on_engine(args: argparse.Namespace) -> None:
    """Prints the figures of steps of the engine in tf.functions."""
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
