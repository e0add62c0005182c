"""Defines session hooks, and base classes of session hooks."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.program_types import RunContext, RunValues
from tf2_engine import log
from tf2_engine.types import Tensor, Variable


class StepHook(tf.train.SessionRunHook):
    """Fetches a tensor in every step: the global step, unless `begin` chooses another tensor."""

    fetched: Tensor | Variable

    def begin(self) -> None:
        self.fetched = tf.train.get_global_step()

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self.fetched)

    def step_if_due(
        self, timer: tf.train.SecondOrStepTimer, run_context: RunContext, run_values: RunValues
    ) -> int | None:
        # The step that was fetched may be the value before or after the call.
        if not timer.should_trigger_for_step(run_values.results + 1):
            return None
        step = int(run_context.session.run(self.fetched))
        return step if timer.should_trigger_for_step(step) else None


_STEPS = 100  # `UnmovedStep` warns after this many steps


class UnmovedStep:
    """Warns once if the global step has not changed in 100 steps.

    Fewer steps without a change are normal, because a train_op may accumulate gradients.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._steps_seen = 0

    def see(self, global_step: int, steps: int) -> None:
        if self._steps_seen >= _STEPS:
            return
        self._steps_seen += steps
        if self._first is None:
            self._first = global_step
        elif self._steps_seen >= _STEPS and global_step == self._first:
            log.warning(
                "The global step is %d, as it was %d training steps ago, so training never "
                "reaches its last step. Make the train_op increment the global step: "
                "`optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())`.",
                *(global_step, self._steps_seen),
            )


class StopAtStepHook(tf.train.StopAtStepHook):
    """Stops at a given step, like TensorFlow's hook; warns if the global step does not change."""

    def __init__(self, num_steps: int | None, last_step: int | None) -> None:
        super().__init__(num_steps, last_step)
        self._unmoved = UnmovedStep()

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        super().after_run(run_context, run_values)
        self._unmoved.see(run_values.results, 1)
