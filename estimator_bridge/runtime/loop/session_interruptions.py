"""Ends training when a signal arrives: after the current step, or while the step waits for input.

The counters of `LoopProgress` tell whether a step still waits for input and can be cancelled.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import signal
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.host_calls import sources
from estimator_bridge.runtime.program_types import Hook, RunContext, RunValues
from estimator_bridge.runtime.step.model_step import ModelStep
from tf2_engine import interruptions, log, tf_compat
from tf2_engine.types import Op, Session, Tensor

_INPUT_OPS = ("IteratorGetNext", "IteratorGetNextSync", "QueueDequeue", "ReaderRead")


class LoopProgress:
    """Counts arrived batches and finished steps, with ops that the session runs.

    Inputs that only some steps read, for instance for hooks or inside a branch, are not counted.
    """

    def __init__(self, train_op: Op, device: str) -> None:
        self._inputs = _inputs_of(train_op)
        self._device = device
        # These are raw ops: variables would belong to the strategy and would be saved and restored.
        with tf.device(device):
            self._one = tf.constant(1, tf.int64)
            self._counters = [
                tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)
                for name in ("batches_arrived", "steps_done")
            ]
            self._values = [
                tf.raw_ops.ReadVariableOp(resource=counter, dtype=tf.int64)
                for counter in self._counters
            ]
            zero = tf.constant(0, tf.int64)
            self._start = tf.group(
                *(
                    tf.raw_ops.AssignVariableOp(resource=counter, value=zero)
                    for counter in self._counters
                )
            )
        self._train_op = train_op

    def count(self) -> tuple[Op, Tensor]:
        arrived = self._add(0, self._inputs)
        counted = self._add(1, [self._train_op, arrived])
        with tf.control_dependencies([counted]), tf.device(self._device):
            done = tf.raw_ops.ReadVariableOp(resource=self._counters[1], dtype=tf.int64)
        return counted, done

    def start(self, session: Session) -> None:
        session.run(self._start)

    def waits(self, session: Session, returned: int) -> bool:
        arrived, done = session.run(self._values)
        return bool(self._inputs) and int(arrived) == int(done) == returned

    def _add(self, counter: int, after: Sequence[Op]) -> Op:
        with tf.control_dependencies(after), tf.device(self._device):
            resource = self._counters[counter]
            return tf.raw_ops.AssignAddVariableOp(resource=resource, value=self._one)


def _inputs_of(train_op: Op) -> list[Op]:
    ops = [op for op in sources(train_op, control=True) if op.type.startswith(_INPUT_OPS)]
    unconditional = [op for op in ops if not tf_compat.is_in_control_flow(op)]
    return sorted(unconditional, key=lambda op: op.name)


@dataclasses.dataclass(frozen=True)
class Saving:
    """Saves a checkpoint, without the input's state, while the main thread is in a session call."""

    step: Tensor
    path: str  # the checkpoint's path without `-<step>`
    scaffold: tf.train.Scaffold
    before_save: Callable[[Session], None] | None

    def save(self, session: Session, step: int, is_valid: Callable[[], bool]) -> bool:
        if self.before_save is not None:
            self.before_save(session)
        with session.graph.as_default():
            saver = self.scaffold.saver
            path = saver.save(session, self.path, global_step=step, write_state=False)
        if is_valid():
            tf_compat.publish_checkpoint(path)
            return True
        for part in glob.glob(f"{glob.escape(path)}.*"):
            os.remove(part)
        return False

    def is_saved(self, step: int) -> bool:
        return os.path.exists(f"{self.path}-{step}.index")


class StopHook(interruptions.SavedSteps, tf.train.SessionRunHook):
    """Stops training after the current step if a signal arrives; must be the first hook."""

    def __init__(self) -> None:
        super().__init__()
        self._is_watched = interruptions.can_handle()
        self._number, self._is_running = 0, False
        self._session: Session | None = None
        self._progress: LoopProgress | None = None
        self._done: Tensor | None = None
        self._num_returned = 0
        self._saving: Saving | None = None
        self._last_step: int | None = None

    @property
    def running(self) -> int | None:
        return self._number if self._is_running else None

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        if self._progress is not None:
            self._progress.start(session)
        self._session, self._num_returned, self.has_begun = session, 0, True

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs | None:
        self._number += 1
        self._is_running = True
        return None if self._done is None else tf.train.SessionRunArgs(self._done)

    def returned(self) -> None:
        self._num_returned += 1

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        self._is_running = False
        if self._done is not None:
            self._num_returned = int(run_values.results)
        if self.stop_requested is not None:
            if self.stop_requested == signal.SIGTERM:
                log.warning("SIGTERM: training stops after this step and saves.")
            run_context.request_stop()

    def end(self, session: Session) -> None:
        if self._saving is not None:
            self._last_step = int(session.run(self._saving.step))

    def saves(self, hooks: Sequence[Hook], step: ModelStep) -> None:
        savers = [hook for hook in hooks if isinstance(hook, tf.train.CheckpointSaverHook)]
        if savers and step.scaffold is not None:
            path = tf_compat.path_of_saver(savers[0])
            number = tf.train.get_global_step()
            self._saving = Saving(number, path, step.scaffold, step.before_save)

    def state(self) -> str:
        step = self._last_step
        if self._saving is None or step is None or not self._saving.is_saved(step):
            return "nothing has been saved since the last checkpoint"
        return f"step {step} is saved in {os.path.dirname(self._saving.path)}"

    def count(self, step: ModelStep, device: str) -> ModelStep:
        if not self._is_watched:
            return step
        self._progress = LoopProgress(getattr(step.train_op, "op", step.train_op), device)
        train_op, self._done = self._progress.count()
        return dataclasses.replace(step, train_op=train_op)

    def waits(self) -> bool:
        if self._session is None or self._progress is None:
            return False
        try:
            return self._progress.waits(self._session, self._num_returned)
        except (tf.errors.OpError, RuntimeError):  # The session has been closed.
            return False

    def rescue(self, still_waits: Callable[[], bool]) -> bool:
        if self._saving is None or self._session is None:
            return True
        step = int(self._session.run(self._saving.step))
        is_saved = self._saving.is_saved(step)
        # If the batch arrives after all, rows may change while they are written.
        if not (still_waits() if is_saved else self._saving.save(self._session, step, still_waits)):
            return False
        self._last_step = step
        return True

    def cancel(self) -> None:
        if self._session is not None:
            self._session.close()
