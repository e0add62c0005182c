"""Helpers for loops that evaluate checkpoints as a training writes them."""

from __future__ import annotations

import time
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine import log
from tf2_engine.types import Object, Op, Session, Tensor


def wait_for_new_checkpoint(
    checkpoint_dir: str,
    last_checkpoint: str | None = None,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
) -> str | None:
    """Returns the next checkpoint after `last_checkpoint`; None after `timeout` seconds."""
    until = None if timeout is None else time.time() + timeout
    while True:
        path = tf.train.latest_checkpoint(checkpoint_dir)
        if path is not None and path != last_checkpoint:
            return str(path)
        if until is not None and time.time() + seconds_to_sleep > until:
            return None
        time.sleep(seconds_to_sleep)


def get_or_create_eval_step() -> Tensor:
    """Returns the variable that counts the steps of an evaluation."""
    counters = tf.get_collection(tf.GraphKeys.EVAL_STEP)
    if len(counters) > 1:
        raise errors.InvalidInput(
            f"The graph has {len(counters)} variables that count evaluations."
        )
    if counters:
        return counters[0]
    return tf.get_variable(
        "eval_step",
        shape=[],
        dtype=tf.int64,
        initializer=tf.zeros_initializer(),
        trainable=False,
        collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.EVAL_STEP],
    )


class StopAfterNEvalsHook(tf.train.SessionRunHook):
    """Stops after `num_evals` runs; None never stops. The counter is the graph's eval step."""

    def __init__(self, num_evals: int | None, log_progress: bool = True) -> None:
        self._num_evals, self._log_progress = num_evals, log_progress
        self._done = 0

    def before_run(self, run_context: Object) -> None:
        """Counts the run."""
        self._done += 1

    def after_run(self, run_context: Object, run_values: Object) -> None:
        """Stops after the last one."""
        if self._log_progress:
            log.info("Evaluation [%s/%s]", self._done, self._num_evals or "?")
        if self._num_evals is not None and self._done >= self._num_evals:
            run_context.request_stop()


class SummaryAtEndHook(tf.train.SessionRunHook):
    """Writes the summaries of the graph once, at the end of a session."""

    def __init__(
        self,
        log_dir: str | None = None,
        summary_writer: Object = None,
        summary_op: Op = None,
        feed_dict: Mapping[Object, Object] | None = None,
    ) -> None:
        if log_dir is None and summary_writer is None:
            raise errors.InvalidInput("`log_dir` or `summary_writer` must be given.")
        self._log_dir, self._writer = log_dir, summary_writer
        self._summary_op, self._feed_dict = summary_op, feed_dict

    def begin(self) -> None:
        """Collects the summaries while the graph may still change."""
        self._summary_op = self._summary_op or tf.summary.merge_all()
        self._global_step = tf.train.get_or_create_global_step()
        self._writer = self._writer or tf.summary.FileWriterCache.get(self._log_dir)

    def end(self, session: Session) -> None:
        """Writes them."""
        step = session.run(self._global_step)
        if self._summary_op is not None:
            text = session.run(self._summary_op, self._feed_dict)
            self._writer.add_summary(text, step)
        self._writer.flush()
