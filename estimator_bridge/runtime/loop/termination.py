"""Ends a training on SIGTERM: after the step that runs, with a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.program_types import RunContext, RunValues


class StopHook(tf.train.SessionRunHook):
    """Stops a training after the step that runs.

    Attributes:
        stop_requested: set it to stop.
    """

    def __init__(self) -> None:
        self.stop_requested = False

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Ends the training if that is requested; hooks then save as at every end."""
        if self.stop_requested:
            tf.logging.warning("SIGTERM: the training stops after this step and saves.")
            run_context.request_stop()


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[list[StopHook]]:
    """Yields hooks that stop a training on SIGTERM, and holds the signal back until it has ended.

    On exit the previous handler is restored, and a signal that was held back is sent again: the
    process ends, or runs its own handler, only later. There are no hooks where SIGTERM is ignored,
    and outside of the main thread, which alone may have handlers.
    """
    previous = signal.getsignal(signal.SIGTERM)
    in_main_thread = threading.current_thread() is threading.main_thread()
    # None is a handler that is not Python's, and could not be restored.
    if not in_main_thread or previous in (None, signal.SIG_IGN):
        yield []
        return
    hook = StopHook()

    def request_stop(signum: int, frame: FrameType | None) -> None:
        hook.stop_requested = True

    signal.signal(signal.SIGTERM, request_stop)
    try:
        yield [hook]
    finally:
        signal.signal(signal.SIGTERM, previous)
        if hook.stop_requested:
            os.kill(os.getpid(), signal.SIGTERM)
