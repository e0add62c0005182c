"""What SIGTERM does to a training: it ends after the step that runs, with a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf


class StopHook(tf.train.SessionRunHook):
    """Stops a training once it is told to."""

    def __init__(self) -> None:
        self.told = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Ends the training after this step; hooks then save as at every end."""
        if self.told:
            tf.logging.warning("SIGTERM: the training stops after this step and saves.")
            run_context.request_stop()


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[list[StopHook]]:
    """While it is open a SIGTERM is kept back, and stops the hooks that it gives.

    On leaving, the handler from before is put back, and a signal that was kept back is sent anew:
    the process ends, or does what its own handler does, only later. Where SIGTERM is ignored, or
    outside of the main thread, which alone may have handlers, there are no hooks.
    """
    before = signal.getsignal(signal.SIGTERM)
    in_main_thread = threading.current_thread() is threading.main_thread()
    # None is a handler that is not Python's, and could not be put back.
    if not in_main_thread or before in (None, signal.SIG_IGN):
        yield []
        return
    hook = StopHook()

    def tell(signum: int, frame: Any) -> None:
        hook.told = True

    signal.signal(signal.SIGTERM, tell)
    try:
        yield [hook]
    finally:
        signal.signal(signal.SIGTERM, before)
        if hook.told:
            os.kill(os.getpid(), signal.SIGTERM)
