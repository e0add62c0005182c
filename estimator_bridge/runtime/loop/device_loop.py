"""When a training ends, by its schedule or on SIGTERM, and the steps that hooks see as one."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.run_config import IterationsPerLoop
from estimator_bridge.runtime.program_types import RunContext, RunValues
from estimator_bridge.runtime.step.model_step import ModelStep
from tf2_engine.types import Op, Session, Tensor


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When a training ends, and what hooks and reports see of it.

    Attributes:
        steps, last_step: steps to add, or the global step to stop at; None and None where the
            input ends the training.
        batch_size: samples of a global batch, for reports; None if it is not known.
        report_interval: of progress reports, `every_n_iter` or `every_n_secs`, for a hook that
            counts its calls; None is that of the config.
        loop: the steps, or seconds, that hooks see as one; None shows them every step.
        host_call_every: inside a loop the host call is run in steps 0, k, 2k, ...
    """

    steps: int | None
    last_step: int | None
    batch_size: int | None = None
    report_interval: Mapping[str, int] | None = None
    loop: IterationsPerLoop | None = None
    host_call_every: int = 1


def report_interval(iterations: IterationsPerLoop, every_n_steps: int) -> dict[str, int]:
    """Returns the interval of progress reports as stock computes it, an argument of hooks.

    Stock divides by the steps of a loop also where there are no loops, and also for hooks that
    count steps and not calls.
    """
    if iterations.unit == "seconds":
        return {"every_n_secs": iterations.value}
    return {"every_n_iter": math.ceil(every_n_steps / iterations.value)}


class DeviceLoopHook(tf.train.SessionRunHook):
    """Makes all steps of a loop but its last, which is that of the session call itself.

    It must be the last hook. Every other hook's `before_run` then comes before the first step of
    the loop and its `after_run` after the last, and tensors that hooks fetch are of the last
    step, as with stock, whose loop is on the device. A `tf.while_loop` around the step would be
    one call too, but would put the model into another graph, out of reach of hooks and of the
    program's tensors; with single steps ops and numbers are those of an ordinary training.

    Attributes:
        loss: of the last step that ended, or None.
    """

    def __init__(
        self, schedule: Schedule, step: ModelStep, interruptions: Sequence[_StopHook]
    ) -> None:
        self.loss: np.floating | None = None
        self._schedule, self._step, self._interruptions = schedule, step, interruptions
        self._last_step = schedule.last_step

    def begin(self) -> None:
        """Reads the global step together with the last step of a loop, and after it."""
        self._global_step = tf.train.get_global_step()
        with tf.control_dependencies([self._step.train_op]):
            self._step_after: Tensor = self._global_step.read_value()

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Computes the step to stop at; a session that is created again stops at the same."""
        self._current_step = int(session.run(self._global_step))
        if self._last_step is None:
            assert self._schedule.steps is not None
            self._last_step = self._current_step + self._schedule.steps

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs:
        """Makes all steps of the loop but the last."""
        session, number = run_context.session, 0
        remaining = int(self._last_step or 0) - self._current_step
        started = time.monotonic()
        while not self._is_last(number, remaining, started):
            *_, self.loss = session.run(self._fetches(number))
            number += 1
        last = [] if self._step.end_of_loop is None else [self._step.end_of_loop]
        return tf.train.SessionRunArgs([*last, *self._fetches(number), self._step_after])

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Ends the loop, and stops when the last step is reached."""
        *_, self.loss, current_step = run_values.results
        self._current_step = int(current_step)
        if self._current_step >= int(self._last_step or 0):
            run_context.request_stop()

    def _is_last(self, number: int, remaining: int, started: float) -> bool:
        """Returns whether step `number` of a loop is its last, `remaining` steps before the end."""
        assert self._schedule.loop is not None
        value, unit = self._schedule.loop
        interrupted = any(hook.stop_requested for hook in self._interruptions)
        if interrupted or number + 1 >= remaining:
            return True
        return number + 1 >= value if unit == "count" else time.monotonic() - started >= value

    def _fetches(self, number: int) -> list[Op]:
        """Returns the ops of step `number` of a loop, the loss last."""
        due = number % self._schedule.host_call_every == 0 and self._step.host_call is not None
        host_call = [self._step.host_call] if due else []
        return [self._step.train_op, *host_call, self._step.loss]


class _StopHook(tf.train.SessionRunHook):
    """Stops a training after the step that runs, once `stop_requested` is set."""

    def __init__(self) -> None:
        self.stop_requested = False

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        if self.stop_requested:
            tf.logging.warning("SIGTERM: the training stops after this step and saves.")
            run_context.request_stop()


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[list[_StopHook]]:
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
    hook = _StopHook()

    def request_stop(signum: int, frame: FrameType | None) -> None:
        hook.stop_requested = True

    signal.signal(signal.SIGTERM, request_stop)
    try:
        yield [hook]
    finally:
        signal.signal(signal.SIGTERM, previous)
        if hook.stop_requested:
            os.kill(os.getpid(), signal.SIGTERM)
