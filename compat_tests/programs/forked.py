"""Forks before and after it trains, as its argument says, and trains in both processes.

    python -m compat_tests.programs.forked KIND DIRECTORY

It prints how many threads the making of the engine or job started, and a line for each process.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tf2_engine
from compat_tests.programs import killed, stuck, stuck_trainer

SECONDS = 100
"""After these a process that waits for ever is ended."""


def engine() -> Callable[[], Any]:
    """Returns the step of an engine, in a function."""
    table = tf2_engine.TableSpec("words", 8, 2, "sum", tf2_engine.Adagrad(0.1))
    spec = tf2_engine.EngineSpec((table,), (tf2_engine.FeatureSpec("ids", "words"),))
    embedding = tf2_engine.TPUEmbedding(spec)

    def step(ids: Any) -> None:
        embedding.enqueue({"ids": ids})
        embedding.apply_gradients(embedding.dequeue())

    # A new function each time, as of a new program.
    return lambda: tf.function(step)(tf.constant([1, 2]))


def estimator(directory: pathlib.Path) -> Callable[[], Any]:
    job = killed.make(directory)
    return lambda: job.train(killed.by_step, steps=1)


def trainer(directory: pathlib.Path) -> Callable[[], Any]:
    job = stuck_trainer.make(directory, "never")
    return lambda: job.train(stuck_trainer.input_of(directory, stuck.WHOLE), steps=1)


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def tried(name: str, work: Callable[[], Any]) -> None:
    """Works, and prints what became of it."""
    signal.alarm(SECONDS)
    try:
        work()
        print(name, "works", flush=True)  # noqa: T201
    except Exception as error:
        cause = " ".join(str(error).split())  # AutoGraph adds lines
        print(name, f"{type(error).__name__}: {cause}", flush=True)  # noqa: T201


def main(kind: str, directory: pathlib.Path) -> None:
    """Makes what trains, forks, trains, and forks again."""
    works = {"engine": engine, "estimator": lambda: estimator(directory / "job")}
    works["trainer"] = lambda: trainer(directory)
    threads = num_threads()
    work = works[kind]()
    if kind != "trainer":
        print("made with", num_threads() - threads, "threads", flush=True)  # noqa: T201
    for name in ("before", "after"):
        if kind != "trainer" or name == "after":  # a Trainer runs ops when it is made
            child = killed.fork(lambda name=name: tried(name, work))
            status = os.waitpid(child, 0)[1]
            if status:
                print(name, f"ended with {status}", flush=True)  # noqa: T201
        tried("parent", work)


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
