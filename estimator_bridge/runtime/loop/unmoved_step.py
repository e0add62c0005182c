"""Warns about training that never ends because nothing increments its global step."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.program_types import RunContext, RunValues
from tf2_engine import log

_STEPS = 100
"""The number of steps after which to warn."""


class UnmovedStep:
    """Warns once if the global step has not changed during the first hundred steps.

    A train_op that accumulates gradients changes it only now and then.
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
                "The global step is %d, as it was %d training steps ago, so the training never "
                "reaches its last step. Make the train_op increment it: "
                "`optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())`.",
                *(global_step, self._steps_seen),
            )


class StopAtStepHook(tf.train.StopAtStepHook):
    """Stops at a step like TensorFlow's hook; warns if the global step does not change."""

    def __init__(self, num_steps: int | None, last_step: int | None) -> None:
        super().__init__(num_steps, last_step)
        self._unmoved = UnmovedStep()

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        super().after_run(run_context, run_values)
        self._unmoved.see(run_values.results, 1)
