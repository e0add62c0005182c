"""Ends a training on SIGTERM or Ctrl-C with a checkpoint, also while the input gives no batch.

While a step waits for its input the main thread is inside TensorFlow, where Python runs no signal
handler. A thread is told of the signal all the same; if the step then goes on waiting, it saves,
and ends the step. It does so only if no op of the step but those of the input has run: two counters
in the session tell, one of batches that have arrived and one of steps that are done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.program_types import Hook, RunContext, RunValues
from estimator_bridge.runtime.step.model_step import ModelStep
from tf2_engine import log, tf_compat
from tf2_engine.types import Graph, Op, Session, Tensor

VARIABLE = "ESTIMATOR_BRIDGE_STOP_SECONDS"
"""The environment variable with the seconds from a signal to the end of a stuck training."""
_SECONDS = 10.0
_POLL_SECONDS = 0.1
_INPUT_OPS = ("IteratorGetNext", "IteratorGetNextSync", "QueueDequeue", "ReaderRead")
_NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}


def stop_seconds() -> float:
    """Returns the seconds from a signal to the end of a stuck training.

    Raises:
        InvalidInput: the environment variable is no positive number.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or _SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise errors.InvalidInput(
            f"${VARIABLE}={text!r} is no positive number of seconds. Give one, or unset it for "
            f"{_SECONDS:g}."
        )
    return seconds


class Progress:
    """Counts, in the session, batches that have arrived and steps that are done."""

    def __init__(self, graph: Graph) -> None:
        ops = graph.get_operations()
        self._inputs = [op for op in ops if op.type.startswith(_INPUT_OPS)]
        # Raw ops, since variables would be those of the strategy, and be restored and saved.
        with tf.device("/device:CPU:0"):
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
        self._arrived = self._add(0, self._inputs)

    def count(self, train_op: Op) -> Op:
        """Returns a train_op that counts its batch and itself."""
        return self._add(1, [train_op, self._arrived])

    def start(self, session: Session) -> None:
        """Begins in a new session."""
        session.run(self._start)

    def waits(self, session: Session) -> bool:
        """Whether a step that runs, or is about to, has not got its batch yet.

        A model whose input is no dataset and no queue does not tell.
        """
        arrived, done = session.run(self._values)
        return bool(self._inputs) and int(arrived) == int(done)

    def _add(self, counter: int, after: Sequence[Op]) -> Op:
        with tf.control_dependencies(after), tf.device("/device:CPU:0"):
            resource = self._counters[counter]
            return tf.raw_ops.AssignAddVariableOp(resource=resource, value=self._one)


@dataclasses.dataclass(frozen=True)
class Saving:
    """How the watching thread saves: as the hooks do, but for the state of the input.

    The path is that of checkpoints without their step.
    """

    step: Tensor
    path: str
    scaffold: tf.train.Scaffold
    before_save: Callable[[Session], None] | None

    def save(self, session: Session) -> None:
        """Saves a checkpoint."""
        if self.before_save is not None:
            self.before_save(session)
        with session.graph.as_default():
            self.scaffold.saver.save(session, self.path, global_step=self.step)

    def is_saved(self, step: int) -> bool:
        """Whether there is a checkpoint of a step."""
        return os.path.exists(f"{self.path}-{step}.index")

    def remove(self, step: int) -> None:
        """Removes the checkpoint of a step."""
        for path in glob.glob(f"{glob.escape(self.path)}-{step}.*"):
            os.remove(path)


class StopHook(tf.train.SessionRunHook):
    """Stops a training after the step that runs, once `stop_requested` is set; it is the first.

    Attributes:
        stop_requested: the signal that asked for it, or None.
        running: whether a step runs, device loops included.
        session: of the training, once there is one.
    """

    def __init__(self, *, is_watched: bool) -> None:
        self._is_watched = is_watched
        self.stop_requested: int | None = None
        self.running = False
        self.session: Session | None = None
        self._progress: Progress | None = None
        self._saving: Saving | None = None
        self._last_step: int | None = None

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Begins to count in a new session."""
        if self._progress is not None:
            self._progress.start(session)
        self.session = session

    def before_run(self, run_context: RunContext) -> None:
        """Notes that a step runs."""
        self.running = True

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Stops, if that was asked for while the step ran."""
        self.running = False
        if self.stop_requested is not None:
            if self.stop_requested == signal.SIGTERM:
                log.warning("SIGTERM: the training stops after this step and saves.")
            run_context.request_stop()

    def end(self, session: Session) -> None:
        """Notes the last step."""
        if self._saving is not None:
            self._last_step = int(session.run(self._saving.step))

    def saves(self, hooks: Sequence[Hook], step: ModelStep) -> None:
        """Takes from the hooks of the training where, and whether, it saves."""
        savers = [hook for hook in hooks if isinstance(hook, tf.train.CheckpointSaverHook)]
        if savers and step.scaffold is not None:
            path = tf_compat.path_of_saver(savers[0])
            number = tf.train.get_global_step()
            self._saving = Saving(number, path, step.scaffold, step.before_save)

    def state(self) -> str:
        """Returns what is saved, for people."""
        step = self._last_step
        if self._saving is None or step is None or not self._saving.is_saved(step):
            return "nothing is saved since the last checkpoint"
        return f"step {step} is saved in {os.path.dirname(self._saving.path)}"

    def count(self, step: ModelStep, graph: Graph) -> ModelStep:
        """Returns the step, whose batches and ends are counted from now on."""
        if not self._is_watched:
            return step
        self._progress = progress = Progress(graph)
        end = None if step.end_of_loop is None else progress.count(step.end_of_loop)
        return dataclasses.replace(step, train_op=progress.count(step.train_op), end_of_loop=end)

    def waits(self) -> bool:
        """Whether the step that runs waits for its input."""
        if not self.running or self.session is None or self._progress is None:
            return False
        try:
            return self._progress.waits(self.session)
        except (tf.errors.OpError, RuntimeError):  # The session has been closed.
            return False

    def rescue(self) -> bool:
        """Saves while a step waits for its input; returns whether it waited to the end of that."""
        if self._saving is None or self.session is None:
            return True
        step = int(self.session.run(self._saving.step))
        is_new = not self._saving.is_saved(step)
        if is_new:
            self._saving.save(self.session)
        if self.waits():
            self._last_step = step
            return True
        if is_new:
            # The batch came after all: rows may have changed while they were written.
            self._saving.remove(step)
        return False


class _Watch:
    """The thread that acts on a signal while the main thread cannot."""

    def __init__(self, hook: StopHook, seconds: float) -> None:
        self.cancelled = False
        self._hook, self._seconds = hook, seconds
        self._ended = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread."""
        self._ended.set()
        try:
            signal.set_wakeup_fd(self._previous, warn_on_full_buffer=False)
        except (OSError, ValueError):  # The program has closed its own meanwhile.
            signal.set_wakeup_fd(-1)
        self._writer.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)
        self._reader.close()

    def _run(self) -> None:
        number = self._next_signal()
        if number is None:
            return
        began, waited_since = time.monotonic(), None
        while not self._ended.wait(_POLL_SECONDS):
            now = time.monotonic()
            waited_since = (waited_since or now) if self._hook.waits() else None
            if waited_since is not None and now - max(began, waited_since) >= self._seconds / 2:
                if self._rescued(number):
                    self._end_process(number, began + self._seconds)
                    return
                waited_since = None

    def _next_signal(self) -> int | None:
        """Returns the first signal that would end the training; None once it has ended."""
        while True:
            try:
                numbers = self._reader.recv(64)
            except OSError:
                return None
            if not numbers:
                return None
            if self._previous != -1:  # Such as an event loop.
                with contextlib.suppress(OSError):
                    os.write(self._previous, numbers)
            for number in numbers:
                if number in _NAMES and signal.getsignal(number) not in (None, signal.SIG_IGN):
                    return int(number)

    def _rescued(self, number: int) -> bool:
        try:
            is_rescued = self._hook.rescue()
        except Exception as error:
            log.error("%s: nothing could be saved: %s", _NAMES[signal.Signals(number)], error)
            is_rescued = True
        if is_rescued:
            # As far as Python's own handler gets to run only now.
            self._hook.stop_requested = number
            self.cancelled = True
        return is_rescued

    def _end_process(self, number: int, deadline: float) -> None:
        """Ends the step, or, if that does not end by then, the process."""
        log.warning(
            "%s: the input gave no batch for %g s; %s.",
            _NAMES[signal.Signals(number)],
            self._seconds / 2,
            self._hook.state(),
        )
        session = self._hook.session
        if session is not None:
            # Ops that can be cancelled are; a generator in Python, say, cannot.
            threading.Thread(target=session.close, daemon=True).start()
        if not self._ended.wait(max(1.0, deadline - time.monotonic() - 0.5)):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(128 + number)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopHook]:
    """Yields a hook that stops a training on SIGTERM or Ctrl-C; holds the signal back till then.

    On exit the previous handlers are restored. A SIGTERM that was held back is sent again: the
    process ends, or runs its own handler, only later. After Ctrl-C a KeyboardInterrupt is raised,
    whose message says what is saved; a second Ctrl-C raises one at once.

    The hook does nothing where SIGTERM is ignored, or has a handler that is not Python's, and
    outside of the main thread, which alone may have handlers. Ctrl-C is left to a handler of the
    program's own.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) in (None, signal.SIG_IGN):
        yield StopHook(is_watched=False)
        return
    hook = StopHook(is_watched=True)
    with _handled(hook):
        watch = _Watch(hook, stop_seconds())
        try:
            yield hook
        except Exception:
            if not watch.cancelled:
                raise
        finally:
            watch.end()
    if hook.stop_requested == signal.SIGINT:
        raise KeyboardInterrupt(f"Ctrl-C: {hook.state()}.")


@contextlib.contextmanager
def _handled(hook: StopHook) -> Iterator[None]:
    """While it is open, signals are requests to stop; a SIGTERM is sent again on exit."""

    def request_stop(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (hook.session is None or hook.stop_requested):
            raise KeyboardInterrupt
        hook.stop_requested = number

    before = {number: signal.getsignal(number) for number in _NAMES}
    if before[signal.SIGINT] is not signal.default_int_handler:
        del before[signal.SIGINT]
    for number in before:
        signal.signal(number, request_stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if hook.stop_requested == signal.SIGTERM:
            os.kill(os.getpid(), signal.SIGTERM)
