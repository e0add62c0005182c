"""A job whose input gives some batches and then none, without an end.

    python -m compat_tests.programs.stuck DIRECTORY HOW [TASK]

How it is stuck: "python" (a generator sleeps, which nothing can end), "prefetched" (behind a
buffer), "pipelined" ("python", in a job whose updates are a step behind), "slow" (no batch is
missing: a step computes for long), or "never" (it is not). A file `stuck` in the directory says
when it is. The task is that of which the input is stuck: "train" by default, "evaluate", "predict",
or "between", an evaluation within a training.
"""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf

from compat_tests.programs import killed
from estimator_bridge import estimator

STEPS = 3
"""The batches before it is stuck; of these steps 1 and 2 have a checkpoint of their own."""
SLOW_SECONDS = 4.0
WHOLE = "whole"
"""How an input is that is not stuck, and ends after `STEPS` batches."""


def numbers(directory: pathlib.Path, how: str) -> Iterator[int]:
    yield from range(STEPS)
    if how == WHOLE:
        return
    if how in ("python", "prefetched", "pipelined"):
        (directory / "stuck").touch()
        time.sleep(1000)
    for number in range(STEPS, 1000):
        time.sleep(0.05)
        yield number


def input_of(directory: pathlib.Path, how: str) -> Any:
    def input_fn(params: Any) -> Any:
        data = tf.data.Dataset.from_generator(lambda: numbers(directory, how), tf.int64, [])
        data = data.map(killed.batch_of)
        return data.prefetch(1) if how == "prefetched" else data

    return input_fn


class Slow(tf.train.SessionRunHook):
    """Makes the fourth step compute for long, after it has its batch."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory

    def begin(self) -> None:
        """Makes the op, which runs when the loss is there."""
        (loss,) = tf.get_collection(tf.GraphKeys.LOSSES)[:1]

        def wait(loss: Any) -> Any:
            (self._directory / "stuck").touch()
            time.sleep(SLOW_SECONDS)
            return loss

        self._waits = tf.py_func(wait, [loss], tf.float32)
        self._step = 0

    def before_run(self, run_context: Any) -> Any:
        self._step += 1
        return tf.train.SessionRunArgs(self._waits) if self._step == STEPS + 1 else None


def main(directory: pathlib.Path, how: str, task: str = "train") -> None:
    directory.mkdir(exist_ok=True)
    job = killed.make(directory / "model", pipelined=how == "pipelined")
    stuck, whole = input_of(directory, how), input_of(directory, WHOLE)
    if task == "train":
        job.train(stuck, hooks=[Slow(directory)] if how == "slow" else [], max_steps=500)
    elif task == "between":
        job_spec = estimator.TrainSpec(input_of(directory, "never"), max_steps=500)
        evaluation = estimator.EvalSpec(stuck, steps=500, start_delay_secs=0, throttle_secs=0)
        estimator.train_and_evaluate(job, job_spec, evaluation)
    else:
        job.train(whole, max_steps=STEPS)
        list(job.predict(stuck)) if task == "predict" else job.evaluate(stuck, steps=500)
    sys.stdout.write("went on\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
