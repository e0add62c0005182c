"""Refuses to train in a fork of a process that has trained: TensorFlow's threads are not in it.

`os.fork` copies the thread that calls it and no other. Sessions and tf.functions wait for threads
of TensorFlow, and would wait for ever there. What was imported or made before works in a fork, and
so do ops that run eagerly, one by one.
"""

from __future__ import annotations

import os

from tf2_engine import errors

_process: int | None = None  # the one that has run sessions or functions of ours


def check() -> None:
    """Notes that this process runs sessions or tf.functions; called before it does.

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
