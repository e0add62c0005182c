"""Trains a job that is killed again and again.

    python -m compat_tests.programs.killed DIRECTORY KIND KILLS SEED

Each process that is killed is a fork of this one, which has imported TensorFlow but runs no op.
"""

from __future__ import annotations

import os
import pathlib
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import estimator
from estimator_bridge.legacy import parameters, table_config

BATCH = 4
ROWS = {"users": 11, "items": 6}

CHANGES = 24
"""A process is killed within this number of changes of its directory; a save is at least five."""


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Builds a model that has variables beside the tables."""
    net = tf.concat([features[name] for name in sorted(ROWS)], 1)
    weights = tf.get_variable("weights", [net.shape[1], 1], initializer=tf.ones_initializer())
    predicted = tf.matmul(net, weights)
    if mode == "infer":
        return estimator.tpu.TPUEstimatorSpec(mode, predictions={"p": predicted})
    loss = tf.reduce_mean(tf.square(predicted - labels))
    if mode == "eval":
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)
    train_op = tf.train.AdamOptimizer(0.05).minimize(loss, tf.train.get_global_step())
    return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def batch_of(number: Any) -> tuple[dict[str, Any], Any]:
    """Returns features and labels that depend on a number alone."""
    number = tf.cast(number, tf.int64)
    features = {
        name: tf.sparse.from_dense((tf.range(BATCH, dtype=tf.int64)[:, None] * 3 + number) % rows)
        for name, rows in ROWS.items()
    }
    return features, tf.cast(number % 7, tf.float32) * tf.ones([BATCH, 1])


def by_step(params: Any) -> Any:
    """Returns batches that depend on the global step, with which the dataset begins."""
    return tf.data.Dataset.range(tf.train.get_global_step(), 1 << 40).map(batch_of)


def by_iterator(params: Any) -> Any:
    """Returns batches in an order that only the state of the iterator determines."""
    return tf.data.Dataset.range(100).shuffle(30, seed=5).repeat().map(batch_of).prefetch(2)


def receiver() -> Any:
    users = tf.placeholder(tf.int64, [None, 1])
    features = {name: tf.sparse.from_dense(users % rows) for name, rows in ROWS.items()}
    return estimator.export.ServingInputReceiver(features, {"users": users})


INPUTS: dict[str, Callable[[Any], Any]] = {"step": by_step, "iterator": by_iterator}


class WriteLosses(tf.train.SessionRunHook):
    """Adds a line for each step to a file."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def begin(self) -> None:
        self._fetches = [tf.train.get_global_step(), tf.get_collection(tf.GraphKeys.LOSSES)[0]]

    def before_run(self, run_context: Any) -> Any:
        self._step = run_context.session.run(self._fetches[0])
        return tf.train.SessionRunArgs(self._fetches[1])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        with open(self._path, "a") as file:
            file.write(f"{self._step} {float(run_values.results)!r}\n")


def make(directory: pathlib.Path, *, rows: dict[str, int] | None = None, **options: Any) -> Any:
    """Returns the job, which writes a checkpoint every second step.

    Args:
        rows: of the tables; None is `ROWS`.
        options: of the TPUEstimator; and "strategy", how rows are spread over hosts, and
            "pipelined": updates are a step behind, and device loops have two steps.
    """
    strategy, pipelined = options.pop("strategy", "div"), options.pop("pipelined", False)
    return estimator.tpu.TPUEstimator(
        model_fn=model_fn,
        config=estimator.tpu.RunConfig(
            model_dir=str(directory),
            tf_random_seed=1,
            save_checkpoints_steps=2,
            keep_checkpoint_max=2,
            save_summary_steps=0,
            log_step_count_steps=None,
            checkpoint_save_graph_def=False,
            tpu_config=estimator.tpu.TPUConfig(iterations_per_loop=2 if pipelined else 1),
        ),
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        embedding_config_spec=estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_to_config_dict={name: table_config.FeatureConfig(name) for name in ROWS},
            table_to_config_dict={
                name: table_config.TableConfig(
                    count, 4, tf.random_uniform_initializer(-1.0, 1.0, seed=5), combiner="sum"
                )
                for name, count in (rows or ROWS).items()
            },
            optimization_parameters=parameters.AdamParameters(0.05),
            partition_strategy=strategy,
            pipeline_execution_with_tensor_core=pipelined,
        ),
        **options,
    )


def train(directory: pathlib.Path, kind: str, steps: int) -> None:
    job = make(directory)
    hooks: list[Any] = [WriteLosses(directory.with_suffix(".losses"))]
    if kind == "iterator":
        hooks.append(estimator.experimental.CheckpointInputPipelineHook(job))
    job.train(INPUTS[kind], max_steps=steps, hooks=hooks)


def fork(function: Callable[[], None]) -> int:
    """Runs a function in a fork of this process; returns the id of the fork."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return process


def kill(
    process: int,
    directory: pathlib.Path,
    draw: random.Random,
    *,
    changes: int = CHANGES,
    look: Callable[[pathlib.Path], list[str]] = os.listdir,
) -> None:
    """Kills a process shortly after a random change of its directory.

    Args:
        changes: the maximum number of changes until then.
        look: returns the content of the directory.
    """
    remaining, previous = draw.randint(1, changes), None
    while remaining:
        content = sorted(look(directory)) if directory.exists() else None
        remaining -= content != previous
        previous = content
        assert os.waitpid(process, os.WNOHANG)[0] == 0, "it ended by itself"
        time.sleep(0.0001)
    time.sleep(draw.uniform(0.0, 0.003))
    os.kill(process, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(process, 0)[1])


def main(directory: pathlib.Path, kind: str, kills: int, seed: int) -> int:
    """Trains in several processes, and then as far in one; returns the number of steps.

    Args:
        kind: of the input, one of `INPUTS`.
    """
    parts, draw = directory / "parts", random.Random(seed)
    for _ in range(kills):
        kill(fork(lambda: train(parts, kind, 1 << 40)), parts, draw)
    state = parts / "checkpoint"
    latest = re.search(
        r"model\.ckpt-(\d+)", state.read_text() if state.exists() else "model.ckpt-0"
    )
    assert latest is not None, state.read_text()
    steps = int(latest[1]) + 3
    for name in ("parts", "whole"):
        last = fork(lambda name=name: train(directory / name, kind, steps))
        assert os.waitpid(last, 0)[1] == 0
    return steps


if __name__ == "__main__":
    base, kind_of_input, num_kills, first_seed = sys.argv[1:]
    tf.logging.set_verbosity(tf.logging.ERROR)
    trained = main(pathlib.Path(base), kind_of_input, int(num_kills), int(first_seed))
    print(trained)  # noqa: T201
