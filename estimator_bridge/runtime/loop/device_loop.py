"""The training loop of a TPU: several steps between two calls of the hooks."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.run_config import IterationsPerLoop
from estimator_bridge.runtime.program_types import RunContext, RunValues
from estimator_bridge.runtime.step.model_step import ModelStep
from tf2_engine.types import Op, Session, Tensor


@dataclasses.dataclass(frozen=True)
class DeviceLoop:
    """The number of steps of a training, and of those between two calls of the hooks.

    Attributes:
        iterations: steps of a loop, or its seconds; the last loop may be shorter.
        steps: steps to add; None if `last_step` is set.
        last_step: the global step to stop at; None if `steps` is set.
        host_call_every: inside a loop the host call is run in steps 0, k, 2k, ...
        interrupted: returns whether the next step must be the last of its loop.
    """

    iterations: IterationsPerLoop
    steps: int | None
    last_step: int | None
    host_call_every: int = 1
    interrupted: Callable[[], bool] = lambda: False


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

    Args:
        loop: the lengths of the training and of its loops.
        step: the step to run.

    Attributes:
        loss: of the last step that ended, or None.
    """

    def __init__(self, loop: DeviceLoop, step: ModelStep) -> None:
        self.loss: np.floating | None = None
        self._loop = loop
        self._last_step = loop.last_step
        self._step = step

    def begin(self) -> None:
        """Reads the global step together with the last step of a loop, and after it."""
        self._global_step = tf.train.get_global_step()
        with tf.control_dependencies([self._step.train_op]):
            self._step_after: Tensor = self._global_step.read_value()

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Computes the step to stop at; a session that is created again stops at the same."""
        self._current_step = int(session.run(self._global_step))
        if self._last_step is None:
            assert self._loop.steps is not None
            self._last_step = self._current_step + self._loop.steps

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs:
        """Makes all steps of the loop but the last."""
        session, number = run_context.session, 0
        remaining = int(self._last_step or 0) - self._current_step
        started = time.monotonic()
        while not self._is_last(number, remaining, started):
            self.loss = session.run([*self._fetches(number), self._step.loss])[-1]
            number += 1
        last = [] if self._step.end_of_loop is None else [self._step.end_of_loop]
        fetches = [*last, *self._fetches(number), self._step.loss, self._step_after]
        return tf.train.SessionRunArgs(fetches)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Ends the loop, and stops when the last step is reached."""
        *_, self.loss, current_step = run_values.results
        self._current_step = int(current_step)
        if self._current_step >= int(self._last_step or 0):
            run_context.request_stop()

    def _is_last(self, number: int, remaining: int, started: float) -> bool:
        """Returns whether step `number` of a loop is its last, `remaining` steps before the end."""
        value, unit = self._loop.iterations
        if number + 1 >= remaining or self._loop.interrupted():
            return True
        return number + 1 >= value if unit == "count" else time.monotonic() - started >= value

    def _fetches(self, number: int) -> list[Op]:
        """Returns the ops of step `number` of a loop."""
        due = number % self._loop.host_call_every == 0 and self._step.host_call is not None
        return [self._step.train_op, self._step.host_call] if due else [self._step.train_op]
