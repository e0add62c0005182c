"""Warns of a training that never ends, because nothing moves its global step."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.program_types import RunContext, RunValues
from tf2_engine import log

_STEPS = 100
"""Those after which a step that was never seen to move is reported."""


class UnmovedStep:
    """Warns once if the global step has not moved while the first hundred steps were made.

    A train_op that moves it only now and then, as one that adds up gradients, has had time to.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._steps_seen = 0

    def see(self, global_step: int, steps: int) -> None:
        """Takes the global step, and how many training steps were made since the last call."""
        if self._steps_seen >= _STEPS:
            return
        self._steps_seen += steps
        if self._first is None:
            self._first = global_step
        elif self._steps_seen >= _STEPS and global_step == self._first:
            log.warning(
                "The global step is %d, as it was %d training steps ago, so that the training "
                "never ends by its steps. The train_op has to move it: "
                "`optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())`.",
                *(global_step, self._steps_seen),
            )


class StopAtStepHook(tf.train.StopAtStepHook):
    """Stops at a step, as TensorFlow's does; warns if the global step does not move.

    It sees the value that TensorFlow's hook fetches, so that a step takes no longer.
    """

    def __init__(self, num_steps: int | None, last_step: int | None) -> None:
        super().__init__(num_steps, last_step)
        self._unmoved = UnmovedStep()

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Requests the end when the step is reached."""
        super().after_run(run_context, run_values)
        self._unmoved.see(run_values.results, 1)
