"""Trains: runs a step in a session with hooks and savers, until a schedule or a signal ends it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.run_config import IterationsPerLoop
from estimator_bridge.runtime.cluster.tasks import ChiefHasEnded, WorkerEnd
from estimator_bridge.runtime.cluster.watchdog import watching
from estimator_bridge.runtime.input.feeding import NewSessionHook
from estimator_bridge.runtime.loop.session_hooks import StepHook, StopAtStepHook, UnmovedStep
from estimator_bridge.runtime.loop.session_interruptions import StopHook
from estimator_bridge.runtime.program_types import Hook, RunContext, RunValues
from estimator_bridge.runtime.saving.job_saver import BeforeSave, SavingHook, add_job_saver
from estimator_bridge.runtime.step.model_step import EstimatorJob, ModelStep, new_graph
from tf2_engine import interruptions, log, tf_compat
from tf2_engine.types import Object, Op, Session, Tensor

_LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When training ends: after a number of steps, at a global step, or when the input ends."""

    steps: int | None
    last_step: int | None
    batch_size: int | None = None  # samples per global batch, for reports
    # `every_n_iter` or `every_n_secs`, for hooks that count their calls. None uses the config.
    report_interval: Mapping[str, int] | None = None
    loop: IterationsPerLoop | None = None  # length of a device loop; hooks run once per loop
    host_call_every: int = 1  # in a loop the host call runs in steps 0, k, 2k, ...


def report_interval(iterations: IterationsPerLoop, every_n_steps: int) -> dict[str, int]:
    if iterations.unit == "seconds":
        return {"every_n_secs": iterations.value}
    return {"every_n_iter": math.ceil(every_n_steps / iterations.value)}


class DeviceLoopHook(tf.train.SessionRunHook):
    """Runs all steps of a loop except the last one, which the session call itself runs.

    It must be the last hook. As with stock's loop, other hooks then see only the last step.
    """

    def __init__(self, schedule: Schedule, step: ModelStep, stop: StopHook) -> None:
        self.loss: np.floating | None = None  # loss of the last completed step
        self._schedule, self._step, self._stop = schedule, step, stop
        self._last_step = schedule.last_step
        self._steps_made, self._unmoved = 0, UnmovedStep()

    def begin(self) -> None:
        self._global_step = tf.train.get_global_step()
        with tf.control_dependencies([self._step.train_op]):
            self._step_after: Tensor = self._global_step.read_value()

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        self._current_step = int(session.run(self._global_step))
        self._unmoved.see(self._current_step, 0)
        if self._last_step is None:
            assert self._schedule.steps is not None
            self._last_step = self._current_step + self._schedule.steps

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs:
        session, number = run_context.session, 0
        remaining = int(self._last_step or 0) - self._current_step
        started = time.monotonic()
        while not self._is_last(number, remaining, started):
            *_, self.loss = session.run(self._fetches(number))
            self._stop.returned()
            number += 1
        self._steps_made = number + 1
        last = [] if self._step.end_of_loop is None else [self._step.end_of_loop]
        return tf.train.SessionRunArgs([*last, *self._fetches(number), self._step_after])

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        *_, self.loss, current_step = run_values.results
        self._current_step = int(current_step)
        self._unmoved.see(self._current_step, self._steps_made)
        if self._current_step >= int(self._last_step or 0):
            run_context.request_stop()

    def _is_last(self, number: int, remaining: int, started: float) -> bool:
        assert self._schedule.loop is not None
        value, unit = self._schedule.loop
        if self._stop.stop_requested or number + 1 >= remaining:
            return True
        return number + 1 >= value if unit == "count" else time.monotonic() - started >= value

    def _fetches(self, number: int) -> list[Op]:
        due = number % self._schedule.host_call_every == 0 and self._step.host_call is not None
        host_call = [self._step.host_call] if due else []
        return [self._step.train_op, *host_call, self._step.loss]


def train(
    job: EstimatorJob,
    schedule: Schedule,
    saving_listeners: Sequence[tf.train.CheckpointSaverListener],
) -> np.floating | None:
    """Trains until the schedule, a hook or the end of the input stops it; returns the last loss.

    If the input ends inside a device loop, the finished steps are counted and saved; stock raises
    OutOfRangeError.
    """
    config, stop = job.config, StopHook()
    with (
        interruptions.held_back(stop),
        new_graph(config.tf_random_seed, job.device_fn(), job.strategy, job.resource_step) as graph,
    ):
        tf_compat.read_global_step(graph)
        step = job.build()
        step = dataclasses.replace(step, scaffold=step.scaffold or tf.train.Scaffold())
        if _LOSS not in [each.op.name for each in tf.get_collection(tf.GraphKeys.SUMMARIES)]:
            tf.summary.scalar(_LOSS, step.loss)
        tf.add_to_collection(tf.GraphKeys.LOSSES, step.loss)
        step = stop.count(step, job.client.device)
        all_hooks = [*job.client.hooks, *job.hooks]
        loops: list[DeviceLoopHook] = []
        if schedule.loop is not None:
            loops = [DeviceLoopHook(schedule, step, stop)]
        elif (schedule.steps, schedule.last_step) != (None, None):
            all_hooks.append(StopAtStepHook(schedule.steps, schedule.last_step))
        all_hooks += [tf.train.NanTensorHook(step.loss), *_progress(job, step, schedule)]
        all_hooks += [*step.hooks, *loops]
        add_job_saver(step, job)
        loss = None
        all_hooks = _with_savers(config, step, all_hooks, saving_listeners)
        stop.saves(all_hooks, step)
        remembering = NewSessionHook(tf_compat.remember_fetches)
        with (
            watching(job.client.watched),
            _session(job, step, [stop, remembering, *all_hooks]) as session,
        ):
            while not session.should_stop():
                _, loss = session.run([step.train_op, step.loss])
        if loops:
            loss = loops[0].loss
        if loss is None:
            log.warning("Training made no steps. Perhaps the input is empty.")
    return loss


def _session(job: EstimatorJob, step: ModelStep, hooks: Sequence[Hook]) -> Object:
    config = job.config
    if job.client.end is not None:
        return _worker_session(job, step, hooks, job.client.end)
    return tf.train.MonitoredTrainingSession(
        master=job.master(config.master),
        is_chief=config.is_chief,
        checkpoint_dir=config.model_dir,
        scaffold=step.scaffold,
        hooks=hooks,
        save_checkpoint_secs=0,  # the hook of `_with_savers` saves
        save_summaries_steps=config.save_summary_steps if job.client.writes_summaries else 0,
        config=job.session_config(),
        max_wait_secs=config.session_creation_timeout_secs,
        log_step_count_steps=0,  # the hooks of `_progress` report
        save_graph_def=config.checkpoint_save_graph_def,
    )


def _with_savers(
    config: RunConfig,
    step: ModelStep,
    hooks: Sequence[Hook],
    saving_listeners: Sequence[tf.train.CheckpointSaverListener],
) -> list[Hook]:
    all_hooks = (*hooks, *step.chief_hooks)
    savers = [hook for hook in all_hooks if isinstance(hook, tf.train.CheckpointSaverHook)]
    added_savers = []
    secs, steps = config.save_checkpoints_secs, config.save_checkpoints_steps
    if not savers and (secs or steps):
        options = {"scaffold": step.scaffold, "save_graph_def": config.checkpoint_save_graph_def}
        added_savers = [tf.train.CheckpointSaverHook(config.model_dir, secs, steps, **options)]
    savers += added_savers
    saving_hooks = [hook for hook in hooks if isinstance(hook, SavingHook)]
    saving_listeners = [*(hook.listener for hook in saving_hooks), *saving_listeners]
    if saving_listeners and not savers:
        raise errors.InvalidInput(
            "There should be a CheckpointSaverHook to use saving_listeners or a "
            "CheckpointInputPipelineHook. Set save_checkpoints_steps or save_checkpoints_secs in "
            "the RunConfig."
        )
    update_tables = step.before_save
    if update_tables is not None:
        updates = BeforeSave(lambda session, _: update_tables(session))
        for saver in savers:
            tf_compat.add_saving_listener(saver, updates)
    for listener in saving_listeners:
        tf_compat.add_saving_listener(savers[0], listener)
    own_hooks = [*added_savers, *step.chief_hooks]
    if not config.is_chief:
        own_hooks = [_SaveBesideChief(hook.listener, secs, steps) for hook in saving_hooks]
    others = [hook for hook in hooks if hook not in saving_hooks]
    # Savers save when a session starts, so the input has to be started and restored before that.
    return [*step.input_hooks, *saving_hooks, *own_hooks, *others]


def _progress(job: EstimatorJob, step: ModelStep, schedule: Schedule) -> list[Hook]:
    config = job.config
    if not config.log_step_count_steps:
        return []
    reports = schedule.report_interval or {"every_n_iter": config.log_step_count_steps}
    in_loops = schedule.loop is not None
    writes = config.save_summary_steps and job.client.writes_summaries
    directory = config.model_dir if writes else None
    with tf.control_dependencies([step.train_op] if in_loops else []):
        number = tf.train.get_global_step()
        shown = {_LOSS: step.loss, "step": number.read_value() if in_loops else number}
    timer = tf.train.SecondOrStepTimer(reports.get("every_n_secs"), reports.get("every_n_iter"))
    rates = _StepRateHook(schedule.batch_size, directory, timer)
    losses = tf.train.LoggingTensorHook(shown, **reports)
    # Stock's Estimator and TPUEstimator have different orders.
    return [rates, losses] if schedule.batch_size is None else [losses, rates]


class _StepRateHook(StepHook):
    def __init__(
        self, batch_size: int | None, directory: str | None, timer: tf.train.SecondOrStepTimer
    ) -> None:
        self._batch_size, self._directory, self._timer = batch_size, directory, timer

    def begin(self) -> None:
        super().begin()
        directory = self._directory
        self._writer = tf.summary.FileWriterCache.get(directory) if directory else None

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        step = self.step_if_due(self._timer, run_context, run_values)
        if step is None:
            return
        seconds, steps = self._timer.update_last_triggered_step(step)
        if seconds is None:
            return
        rates = {"global_step/sec": steps / seconds}
        if self._batch_size is not None:
            rates["examples/sec"] = self._batch_size * steps / seconds
        for tag, rate in rates.items():
            log.info("%s: %g", tag, rate)
            if self._writer is not None:
                value = tf.Summary.Value(tag=tag, simple_value=rate)
                self._writer.add_summary(tf.Summary(value=[value]), step)


# How often a worker looks for the chief's variables. TensorFlow's own sessions wait 30 seconds.
_POLL_SECS = 1.0


def _worker_session(
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
                # The manager's own waiting cannot be interrupted, so this asks only once.
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


class _SaveBesideChief(StepHook):
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
