"""Measures what table statistics cost: `python -m benchmarks.table_summaries [--on estimator]`.

Prints CPU times, because other work on the machine affects them little: of a training step of the
engine without statistics ("plain"), of a step that does not record them although others do ("not
due"), and of a step that records them ("due"). On an estimator, a step is a session call with the
usual hooks, and with `TableSummaryHook` unless it is "plain".
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
"""The number of training runs of each kind on an estimator. Runs differ by a few percent."""


def make_step(args: argparse.Namespace) -> tuple[tf2_engine.TPUEmbedding, Callable[[], object]]:
    """Creates an engine, and a function that trains one step on it."""
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
    """Returns the CPU time of each call in ms."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        function()
        taken.append(1e3 * (time.process_time() - began))
    return taken


def make_estimator(args: argparse.Namespace, directory: str) -> estimator.tpu.TPUEstimator:
    """Creates a TPUEstimator with the same tables, whose loss is a sum of their activations."""
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
    """Collects the CPU time in ms from the end of each session call to the end of the next."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._ended: float | None = None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        now = time.process_time()
        if self._ended is not None:
            self.taken.append(1e3 * (now - self._ended))
        self._ended = now


def on_estimator(args: argparse.Namespace) -> None:
    """Trains with and without the hook in turn, and prints the results."""
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
            # The order alternates, so that warming up or slowing down affects all kinds equally.
            for name in sorted(kinds, reverse=bool(turn % 2)):
                place, every = f"{directory}/{turn} {name}", kinds[name]
                job, seen = make_estimator(args, place), StepTimes()
                hooks = [] if every is None else [TableSummaryHook(place, every)]
                steps = args.steps // (10 if name == "due" else 1) + 3
                job.train(input_fn, hooks=[seen, *hooks], steps=steps)
                turns[name].append(statistics.median(seen.taken[2:]))  # The first step writes.
    for name, values in turns.items():
        print(f"{name:8s}{statistics.median(values):9.3f} ms of CPU")
    shares = [
        (not_due - plain + (due - plain) / EVERY) / plain
        for plain, not_due, due in zip(*turns.values(), strict=True)
    ]
    low, middle, high = (100 * share for share in statistics.quantiles(shares, n=4))
    print(
        f"recording every {EVERY} steps costs {middle:.2f} % of a step"
        f" (middle half of {TURNS} runs: {low:.2f} to {high:.2f})"
    )


def main() -> None:
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
    """Runs steps of the engine in tf.functions, and prints the results."""
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
    for _ in range(args.steps // 10):  # in turn, so that other load affects all
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
    print(f"recording every {EVERY} steps costs {100 * share:.2f} % of a step")


if __name__ == "__main__":
    main()
