"""Base classes of session hooks."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.program_types import RunContext, RunValues
from tf2_engine.types import Session, Tensor, Variable


class NewSessionHook(tf.train.SessionRunHook):
    """Calls a function with every new session."""

    def __init__(self, function: Callable[[Session], None]) -> None:
        self._function = function

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        self._function(session)


class StepHook(tf.train.SessionRunHook):
    """Fetches a tensor in every step: the global step, unless `begin` chooses another one."""

    fetched: Tensor | Variable

    def begin(self) -> None:
        self.fetched = tf.train.get_global_step()

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self.fetched)

    def step_if_due(
        self, timer: tf.train.SecondOrStepTimer, run_context: RunContext, run_values: RunValues
    ) -> int | None:
        """Returns the global step after a run if a timer is due at it, otherwise None.

        The fetched step may be the value before or after the run, so it is read again.
        """
        if not timer.should_trigger_for_step(run_values.results + 1):
            return None
        step = int(run_context.session.run(self.fetched))
        return step if timer.should_trigger_for_step(step) else None
