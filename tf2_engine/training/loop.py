"""The training loop, and its reaction to signals."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tf2_engine import interruptions, log, tf_compat
from tf2_engine.summaries.events import EventFile
from tf2_engine.training.checkpoints import Checkpoints
from tf2_engine.training.hooks import HookRunner
from tf2_engine.training.host_functions import HostCall
from tf2_engine.training.trainer_specs import ModelSpec, RunConfig
from tf2_engine.types import Function, Nest, Object, Tensor


class Arrivals:
    """Counts the batches that training steps have received from their input."""

    def __init__(self) -> None:
        with tf.device("/device:CPU:0"):
            # This is not a variable of the strategy or the model, and is not saved.
            self._number = tf_compat.plain_variable(
                initial_value=0, trainable=False, dtype=tf.int64, name="batches_arrived"
            )

    def count(self, batch: Nest) -> None:
        """Counts a batch as soon as it has arrived.

        Call this last in the trace of a step; otherwise the seeds that TensorFlow derives for later
        ops change.
        """
        arrived = tf.nest.flatten(batch, expand_composites=True)
        with tf.control_dependencies(arrived), tf.device("/device:CPU:0"):
            self._number.assign_add(1)

    def start(self) -> None:
        self._number.assign(0)

    def number(self) -> int:
        return int(self._number.numpy())


class TrainerSteps(interruptions.SavedSteps):
    """The steps of one call to `Trainer.train`."""

    def __init__(self, arrivals: Arrivals, checkpoints: Checkpoints) -> None:
        super().__init__()
        self._arrivals, self._checkpoints = arrivals, checkpoints
        self._cancellation = tf_compat.Cancellation()
        self._is_running = False
        self._done = 0

    @property
    def running(self) -> int | None:
        return self._done if self._is_running else None

    def begin(self) -> None:
        self._arrivals.start()
        self.has_begun = True

    def must_stop(self) -> bool:
        if self.stop_requested == signal.SIGTERM:
            log.warning("SIGTERM: training stops after this step and saves.")
        return self.stop_requested is not None

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        self._is_running = True
        try:
            with self._cancellation.possible():
                yield
        finally:
            self._is_running = False
            self._done += 1

    def waits(self) -> bool:
        return self._arrivals.number() == self._done

    def rescue(self, still_waits: interruptions.Condition) -> bool:
        return self._checkpoints.save_while(still_waits)

    def cancel(self) -> None:
        self._cancellation.cancel()

    def state(self) -> str:
        return self._checkpoints.state()


v1 = tf.compat.v1

_SECONDS = 600.0  # between two checkpoints, by default


class Loop:
    """Runs the steps of one call to `Trainer.train`, with the call's callbacks and listeners."""

    def __init__(
        self,
        trainer: Object,
        steps: TrainerSteps,
        checkpoints: Checkpoints,
        hooks: HookRunner,
        callbacks: Sequence[Object],
        listeners: Sequence[Object],
    ) -> None:
        self._trainer, self._checkpoints, self._hooks = trainer, checkpoints, hooks
        self._steps = steps
        self._callbacks, self._listeners = callbacks, listeners
        config: RunConfig = trainer.config
        self._log = _Log(config, trainer.model_dir)
        self._is_due = _Due(config.save_checkpoints_steps, config.save_checkpoints_secs)

    def run(
        self, spec: ModelSpec, run_step: Function, batches: Iterator[Nest], max_steps: int | None
    ) -> Iterator[Sequence[Tensor]]:
        """Runs steps until `max_steps`, the end of the input, or a request to stop.

        Yields the losses of all replicas for each step.
        """
        self._host = HostCall(spec.host_call)
        self._hooks.start()
        self._tell("on_train_begin")
        for listener in self._listeners:
            listener.begin()
        step = int(self._trainer.step.numpy())
        self._log.begin(step)
        self._steps.begin()
        while (max_steps is None or step < max_steps) and not self._stopped():
            asked = self._hooks.before()
            try:
                with self._steps.step():
                    outputs = run_step(batches)
            except tf.errors.OutOfRangeError:
                break
            step += 1
            self._finish_step(step, asked, outputs)
            yield self._trainer.strategy.experimental_local_results(outputs["loss"])
        if self._checkpoints.at is None:
            self._save(step, is_last=True)
        self._end(step)

    def _finish_step(self, step: int, asked: list[Nest], outputs: dict[str, Nest]) -> None:
        self._checkpoints.at = None
        # Increments the step once, even if the program increments it too.
        self._trainer.step.assign(step)
        local = self._trainer.strategy.experimental_local_results
        self._hooks.after(asked, local(outputs["hooks"])[0])
        self._host.run(local(outputs["host"]), step)
        self._log.step(step, local(outputs["loss"]), local(outputs["summaries"])[0])
        self._tell("on_train_batch_end", step)
        if self._is_due(step):
            self._save(step)

    def _end(self, step: int) -> None:
        for listener in self._listeners:
            listener.end(None, step)
        self._host.close()
        self._log.end()
        self._hooks.end()
        self._tell("on_train_end")

    def _stopped(self) -> bool:
        return self._trainer.stop_training or self._hooks.stopped or self._steps.must_stop()

    def _tell(self, method: str, *arguments: int) -> None:
        for callback in self._callbacks:
            if hasattr(callback, method):
                getattr(callback, method)(*arguments)

    def _save(self, step: int, *, is_last: bool = False) -> None:
        for listener in self._listeners:
            listener.before_save(None, step)
        path = self._checkpoints.save()
        log.info("Saved step %d to %s.", step, path)
        for listener in self._listeners:
            if listener.after_save(None, step) and not is_last:
                self._trainer.stop_training = True


class _Due:
    def __init__(self, steps: int | None, seconds: float | None) -> None:
        self._steps = steps
        self._seconds = _SECONDS if seconds is None and not steps else seconds
        self._latest = time.monotonic()

    def __call__(self, step: int) -> bool:
        if self._steps:
            return step % self._steps == 0
        due = bool(self._seconds) and time.monotonic() - self._latest >= float(self._seconds or 0)
        if due:
            self._latest = time.monotonic()
        return due


class _Log:
    def __init__(self, config: RunConfig, directory: str) -> None:
        self._log_every, self._write_every = config.log_step_count_steps, config.save_summary_steps
        self._events = EventFile(directory)
        self._first = True
        self._since = 0, 0.0

    def begin(self, step: int) -> None:
        self._since = step, time.monotonic()

    def step(self, step: int, losses: Sequence[Tensor], summaries: Sequence[Tensor]) -> None:
        logs = self._log_every and (self._first or step % self._log_every == 0)
        writes = self._write_every and (self._first or step % self._write_every == 0)
        if not logs and not writes:
            return
        loss = sum(float(each.numpy()) for each in losses) / len(losses)
        if logs:
            log.info("loss = %s, step = %d", loss, step)
            self._write_rate(step)
        if writes:
            self._events.scalars(step, {"loss": loss})
            for each in summaries:
                self._events.merged(step, each.numpy())
        self._first = False

    def end(self) -> None:
        self._events.flush()

    def _write_rate(self, step: int) -> None:
        (before, then), now = self._since, time.monotonic()
        self._since = step, now
        if not self._first:  # the first interval includes the start
            rate = (step - before) / max(now - then, 1e-9)
            log.info("global_step/sec: %g", rate)
            self._events.scalars(step, {"global_step/sec": rate})
