"""Refuses to train in a fork of a process that has trained, because it lacks TensorFlow's threads.

`os.fork` copies only the thread that calls it. Sessions and tf.functions wait for threads of
TensorFlow, and would wait forever in a fork. What was imported or made before works in a fork, and
so do ops that run eagerly, one by one.
"""

from __future__ import annotations

import os

from tf2_engine import errors

_process: int | None = None  # the process that has run our sessions or functions


def check() -> None:
    """Records that this process is about to run sessions or tf.functions.

    Raises:
        OutOfOrder: this process is a fork of one that has run some.
    """
    global _process
    process = os.getpid()
    if _process is None:
        _process = process
    elif _process != process:
        raise errors.OutOfOrder(
            f"This process, {process}, is a fork of process {_process}, which has trained, "
            "evaluated or predicted: TensorFlow's threads are not in a fork, and it would wait for "
            "them for ever. Fork before that, or start a new process, as "
            "multiprocessing.get_context('spawn') does."
        )
