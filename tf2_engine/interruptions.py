"""Ends a stuck step some time after a signal, even if TensorFlow does not return to Python.

The signals are SIGTERM and Ctrl-C. Python runs signal handlers only in the main thread, and not
while the main thread waits inside TensorFlow, for instance for input. Therefore a separate thread
watches for signals. If the step keeps waiting, the thread saves the model and cancels the step; if
that fails, it ends the process.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from tf2_engine import errors, log

VARIABLE = "ESTIMATOR_BRIDGE_STOP_SECONDS"
"""Environment variable: the seconds between a signal and the end of a stuck step."""
_SECONDS = 10.0
_POLL_SECONDS = 0.1
Condition = Callable[[], bool]
Handler = Callable[[int, FrameType | None], object] | int | None
_NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}


def stop_seconds() -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or _SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise errors.InvalidInput(
            f"${VARIABLE}={text!r} is not a positive number of seconds. Set it to such a number, "
            f"or unset it for the default of {_SECONDS:g} seconds."
        )
    return seconds


def can_handle() -> bool:
    """Whether signals can be held back: this is the main thread, and SIGTERM is not ignored."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGTERM) not in (None, signal.SIG_IGN)


class Steps(abc.ABC):
    """Steps that a signal may end. The thread that watches for signals calls these methods.

    `cause` is the text with which messages explain why a step was ended.
    """

    cause = "no step was done"

    @property
    @abc.abstractmethod
    def running(self) -> int | None:
        """The number of the current step, unique to each step; None if no step is running."""

    @abc.abstractmethod
    def waits(self) -> bool:
        """Whether the current step may be cancelled: it is waiting and has changed no variable."""

    @abc.abstractmethod
    def rescue(self, still_waits: Condition) -> bool:
        """Saves the model while a step waits; returns whether the step waited the whole time."""

    @abc.abstractmethod
    def cancel(self) -> None:
        """Cancels the current step, so that it raises an error; some ops cannot be cancelled."""

    @abc.abstractmethod
    def state(self) -> str:
        """Describes whether and where the last step is saved."""


class SavedSteps(Steps):
    """Steps that are saved before a signal takes effect; see `held_back`.

    Signal handlers only record a signal until the steps end.

    Attributes:
        has_begun: whether there is something to save. Until there is, Ctrl-C has its usual effect.
        stop_requested: the signal that asked to stop after the current step, or None.
    """

    cause = "the input gave no batch"
    has_begun = False

    def __init__(self) -> None:
        self.stop_requested: int | None = None


class ReadingSteps(Steps):
    """Steps that change no variable, as in an evaluation or a prediction.

        with ReadingSteps("the evaluation of model.ckpt-4") as reading:
            with reading.step():
                ...

    If a signal comes and a step does not return, the step is cancelled. If the steps run during
    training, the trained model is saved first.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._number = 0
        self._running: int | None = None
        self._watch: _Watch | None = None
        self.canceller: Callable[[], None] | None = None
        self.num_ended = 0

    @property
    def running(self) -> int | None:
        return self._running

    def waits(self) -> bool:
        return True

    def rescue(self, still_waits: Condition) -> bool:
        return still_waits()

    def cancel(self) -> None:
        if self.canceller is not None:
            self.canceller()

    def state(self) -> str:
        return f"{self._what} is not finished"

    def __enter__(self) -> ReadingSteps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        if self._watch is not None:
            self._watch.close()
        if isinstance(error, KeyboardInterrupt):
            # The traceback would only show internal frames.
            raise KeyboardInterrupt(str(error) or f"Ctrl-C: {self.state()}.") from None

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Marks the context as a running step. Nested steps are separate steps."""
        outer = self._running
        self._next()
        try:
            with contextlib.nullcontext() if outer is not None else self._watched():
                yield
            self.num_ended += 1
        except Exception:
            # A KeyboardInterrupt while TensorFlow raises its own error becomes a different error.
            if self._is_ended_by_ctrl_c():
                raise KeyboardInterrupt from None
            raise
        finally:
            self._next()
            if outer is None:
                self._running = None

    def _is_ended_by_ctrl_c(self) -> bool:
        if self._watch is None or self._watch.ended_by != signal.SIGINT:
            return False
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def _next(self) -> None:
        self._number += 1
        self._running = self._number

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
        elif _Watch.holding is not None:
            with _Watch.holding.around(self):
                yield
        else:
            if self._watch is None:
                self._watch = _Watch(self, stop_seconds())
            with self._watch.armed():
                yield


@contextlib.contextmanager
def held_back(steps: SavedSteps) -> Iterator[None]:
    """Turns SIGTERM and Ctrl-C into requests to stop, and ends steps that keep waiting.

    On exit the previous handlers are restored and SIGTERM is sent again. For Ctrl-C, the program's
    own handler is called; if it has none, a KeyboardInterrupt says what is saved. A second Ctrl-C
    raises a KeyboardInterrupt at once. If `can_handle` returns False, signals have their usual
    effect.
    """
    if not can_handle():
        yield
        return
    watch = _Watch(steps, stop_seconds())
    outer, _Watch.holding = _Watch.holding, watch
    try:
        with _handled(steps, watch):
            try:
                with watch.armed():
                    yield
            except Exception:
                if watch.ended_by is None:
                    raise
            finally:
                watch.close()
    finally:
        _Watch.holding = outer
    if steps.stop_requested == signal.SIGINT:
        raise KeyboardInterrupt(f"Ctrl-C: {steps.state()}.")


@contextlib.contextmanager
def _handled(steps: SavedSteps, watch: _Watch) -> Iterator[None]:
    def request_stop(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (not steps.has_begun or steps.stop_requested):
            raise KeyboardInterrupt
        steps.stop_requested = number

    before = {number: signal.getsignal(number) for number in _NAMES}
    if before[signal.SIGINT] is not signal.default_int_handler:
        del before[signal.SIGINT]
    watch.numbers = frozenset(before)
    try:
        with _replaced(before, request_stop):
            yield
    finally:
        if steps.stop_requested == signal.SIGTERM:
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _replaced(before: dict[signal.Signals, Handler], handler: Handler) -> Iterator[None]:
    is_outermost = not _handlers_before
    if is_outermost:
        _handlers_before.update(before)
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        if is_outermost:
            _handlers_before.clear()
        for number, previous in before.items():
            signal.signal(number, previous)


_handlers_before: dict[signal.Signals, Handler] = {}  # the handlers before `held_back`
_watches: list[_Watch] = []  # the armed watches, which are told of signals


@functools.cache
def _register_for_forks() -> None:
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """Restores the earlier handlers in a fork: a fork's signals must not act on the parent."""
    _Watch.holding = None
    with contextlib.suppress(ValueError):  # Not in the main thread.
        if _watches:
            signal.set_wakeup_fd(-1)
        for number, handler in _handlers_before.items():
            signal.signal(number, handler)
    _watches.clear()
    _handlers_before.clear()


class _Watch:
    """The thread that acts on a signal while the main thread cannot.

    `holding` is the watch of the active `held_back` context, or None.
    """

    holding: _Watch | None = None

    def __init__(self, steps: Steps, seconds: float) -> None:
        self.numbers = frozenset[int](_NAMES)
        self.ended_by: int | None = None
        self._steps, self._seconds = steps, seconds
        self._inner: Steps | None = None
        self._ended = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous = -1
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        _register_for_forks()
        _watches.append(self)
        descriptor = self._writer.fileno()
        self._previous = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
        try:
            yield
        finally:
            _watches.remove(self)
            try:
                signal.set_wakeup_fd(self._previous, warn_on_full_buffer=False)
            except (OSError, ValueError):  # The program has closed the descriptor.
                signal.set_wakeup_fd(-1)

    @contextlib.contextmanager
    def around(self, inner: Steps) -> Iterator[None]:
        outer, self._inner = self._inner, inner
        try:
            yield
        finally:
            self._inner = outer

    def close(self) -> None:
        self._ended.set()
        self._writer.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)
        self._reader.close()

    def _run(self) -> None:
        for number in self._signals():
            if self._watches_after(number):
                return

    def _signals(self) -> Iterator[int]:
        while True:
            try:
                numbers = self._reader.recv(64)
            except OSError:
                return
            if not numbers:
                return
            if self._previous != -1:  # For example, an event loop.
                with contextlib.suppress(OSError):
                    os.write(self._previous, numbers)
            yield from (n for n in numbers if n in self.numbers and callable(signal.getsignal(n)))

    def _watches_after(self, number: int) -> bool:
        step = self._now.running
        began = since = time.monotonic()
        while not self._ended.wait(_POLL_SECONDS):
            now, running = time.monotonic(), self._now.running
            if running is None or running != step:
                if not isinstance(self._steps, SavedSteps):
                    return False
                step, since = running, now
            elif not self._now.waits():
                since = now
            elif now - since >= self._seconds / 2:
                if self._is_rescued(number, running):
                    self._end(number, began + self._seconds)
                    return True
                since = now
        return True

    @property
    def _now(self) -> Steps:
        return self._inner or self._steps

    def _is_rescued(self, number: int, step: int) -> bool:
        def still_waits() -> bool:
            return self._now.running == step and self._now.waits()

        try:
            is_rescued = self._steps.rescue(still_waits)
        except Exception as error:
            log.error("%s: nothing could be saved: %s", _NAMES[signal.Signals(number)], error)
            is_rescued = True
        if is_rescued and isinstance(self._steps, SavedSteps):
            # Python's own handler may not have run yet.
            self._steps.stop_requested = number
        if is_rescued:
            self.ended_by = number
        return is_rescued

    def _end(self, number: int, deadline: float) -> None:
        name, seconds = _NAMES[signal.Signals(number)], self._seconds / 2
        log.warning("%s: %s for %g s; %s.", name, self._now.cause, seconds, self._steps.state())
        # Cancelling may block: a Python generator, for instance, cannot be cancelled.
        threading.Thread(target=self._now.cancel, daemon=True).start()
        if not self._ended.wait(max(1.0, deadline - time.monotonic() - 0.5)):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(128 + number)
