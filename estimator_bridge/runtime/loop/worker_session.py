"""The session of a worker with its own training loop; the chief initializes, restores and saves."""

from __future__ import annotations

import time
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.cluster.worker_end import ChiefHasEnded, WorkerEnd
from estimator_bridge.runtime.loop.session_hooks import StepHook
from estimator_bridge.runtime.program_types import Hook, RunContext, RunValues
from estimator_bridge.runtime.step.model_step import EstimatorJob, ModelStep
from tf2_engine import log
from tf2_engine.types import Session

_POLL_SECS = 1.0
"""Seconds between two looks for the chief's variables. TensorFlow's own sessions take 30."""


def worker_session(
    job: EstimatorJob, step: ModelStep, hooks: Sequence[Hook], end: WorkerEnd
) -> tf.train.MonitoredSession:
    added: list[Hook] = [_StopWithChief(end)]
    config = job.config
    if job.client.writes_summaries and config.save_summary_steps:
        added.append(
            tf.train.SummarySaverHook(
                save_steps=config.save_summary_steps,
                output_dir=config.model_dir,
                scaffold=step.scaffold,
            )
        )
    creator = _WorkerSessions(job, step.scaffold or tf.train.Scaffold(), end)
    return tf.train.MonitoredSession(session_creator=creator, hooks=[*hooks, *added])


class _WorkerSessions(tf.train.SessionCreator):
    def __init__(self, job: EstimatorJob, scaffold: tf.train.Scaffold, end: WorkerEnd) -> None:
        self._job, self._scaffold, self._end = job, scaffold, end

    def create_session(self) -> Session:
        self._scaffold.finalize()
        manager = tf.train.SessionManager(
            local_init_op=self._scaffold.local_init_op,
            local_init_feed_dict=self._scaffold.local_init_feed_dict,
            ready_op=self._scaffold.ready_op,
            ready_for_local_init_op=self._scaffold.ready_for_local_init_op,
            graph=tf.get_default_graph(),
        )
        config = self._job.config
        target, options = self._job.master(config.master), self._job.session_config()
        latest = time.monotonic() + (config.session_creation_timeout_secs or float("inf"))
        log.info("Waiting for the chief to initialize the variables.")
        while True:
            try:
                # Looks once, because the manager's own waiting cannot be interrupted.
                return manager.wait_for_session(target, config=options, max_wait_secs=0)
            except tf.errors.DeadlineExceededError:
                if time.monotonic() > latest:
                    raise
            if self._end.come.wait(_POLL_SECS):
                raise ChiefHasEnded


class _StopWithChief(tf.train.SessionRunHook):
    def __init__(self, end: WorkerEnd) -> None:
        self._end = end

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        if self._end.come.is_set():
            log.info("The chief has ended; the training of this worker stops.")
            run_context.request_stop()


class SaveBesideChief(StepHook):
    """Calls a listener in a worker whenever the chief saves a checkpoint, and at the end."""

    def __init__(
        self,
        listener: tf.train.CheckpointSaverListener,
        every_secs: float | None,
        every_steps: int | None,
    ) -> None:
        self._listener = listener
        self._timer = tf.train.SecondOrStepTimer(every_secs, every_steps)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        if self._timer.should_trigger_for_step(run_values.results):
            self._save(run_context.session)

    def end(self, session: Session) -> None:
        self._save(session)

    def _save(self, session: Session) -> None:
        step = int(session.run(self.fetched))
        self._timer.update_last_triggered_step(step)
        self._listener.before_save(session, step)
