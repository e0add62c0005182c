"""Refuses to train in a fork of a process that has already trained.

The fork lacks TensorFlow's threads, so sessions and tf.functions would wait forever.
"""

from __future__ import annotations

import os

from tf2_engine import errors

_process: int | None = None  # the process that has run our sessions or functions


def check() -> None:
    """Records that this process trains; raises OutOfOrder in a fork of a process that trained."""
    global _process
    process = os.getpid()
    if _process is None:
        _process = process
    elif _process != process:
        raise errors.OutOfOrder(
            f"This process, {process}, is a fork of process {_process}, which has trained, "
            "evaluated or predicted. The fork lacks TensorFlow's threads and would wait for them "
            "forever. Fork before the first of these calls, or start a new process, as "
            "multiprocessing.get_context('spawn') does."
        )
