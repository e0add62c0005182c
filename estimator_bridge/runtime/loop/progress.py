"""Reports the rate of a training in the log and in events."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.program_types import RunContext, RunValues


class StepRateHook(tf.train.SessionRunHook):
    """Logs and records global_step/sec and examples/sec.

    Args:
        batch_size: samples of the global batch.
        every_n_steps, every_n_secs: from one report to the next; one of them.
        output_dir: where events are written, or None for none.
    """

    def __init__(
        self,
        batch_size: int | None,
        output_dir: str | None,
        *,
        every_n_steps: int | None = None,
        every_n_secs: float | None = None,
    ) -> None:
        self._batch_size = batch_size
        self._timer = tf.train.SecondOrStepTimer(every_n_secs, every_n_steps)
        self._output_dir = output_dir

    def begin(self) -> None:
        """Opens the events."""
        self._step = tf.train.get_global_step()
        self._writer = (
            tf.summary.FileWriterCache.get(self._output_dir) if self._output_dir else None
        )

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs:
        """Fetches the global step."""
        return tf.train.SessionRunArgs(self._step)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Reports if the interval has passed."""
        if not self._timer.should_trigger_for_step(run_values.results + 1):
            return
        # Read again: the value that was fetched may be of before or after the step.
        step = run_context.session.run(self._step)
        if not self._timer.should_trigger_for_step(step):
            return
        seconds, steps = self._timer.update_last_triggered_step(step)
        if seconds is None:
            return
        rates = {"global_step/sec": steps / seconds}
        if self._batch_size is not None:
            rates["examples/sec"] = self._batch_size * steps / seconds
        for tag, rate in rates.items():
            tf.logging.info("%s: %g", tag, rate)
            if self._writer is not None:
                value = tf.Summary.Value(tag=tag, simple_value=rate)
                self._writer.add_summary(tf.Summary(value=[value]), step)
