"""A hook that stops a worker once a checkpoint of the last step is written."""

from __future__ import annotations

import time

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Object, Tensor


def make_stop_at_checkpoint_step_hook(
    estimator: Object, last_step: int, wait_after_file_check_secs: float = 30
) -> tf.train.SessionRunHook:
    """Returns a hook that stops training at a step.

    The chief, which writes the checkpoints, stops at the step itself; another worker continues
    until a checkpoint of that step exists.

    Args:
        last_step: the global step to stop at.
        wait_after_file_check_secs: seconds from one look for the checkpoint to the next.

    Raises:
        InvalidInput: `last_step` is None.
    """
    if last_step is None:
        raise errors.InvalidInput("`last_step` must be given, got None.")
    if estimator.config.is_chief:
        return tf.train.StopAtStepHook(last_step=last_step)
    return _StopAtCheckpointHook(estimator.model_dir, last_step, wait_after_file_check_secs)


class _StopAtCheckpointHook(tf.train.SessionRunHook):
    """Stops a worker once the latest checkpoint is of the last step."""

    def __init__(self, model_dir: str, last_step: int, wait_secs: float) -> None:
        self._model_dir = model_dir
        self._last_step = last_step
        self._wait_secs = wait_secs
        self._global_step: Tensor | None = None

    def begin(self) -> None:
        self._global_step = tf.train.get_global_step()

    def before_run(self, run_context: Object) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Object, run_values: Object) -> None:
        # The step may have been read before this run increased it.
        if run_values.results + 1 < self._last_step:
            return
        if self._saved_step() >= self._last_step:
            run_context.request_stop()
        else:
            time.sleep(self._wait_secs)

    def _saved_step(self) -> int:
        path = tf.train.latest_checkpoint(self._model_dir)
        if path is None:
            return 0
        return int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))
