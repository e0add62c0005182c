"""Reports on stderr how far a command is and how long it will take."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator

from tf2_engine import plain_text

Progress = Callable[[str, int, int], None]
"""Called with the name of a phase, the number of units done, and the total."""

_SECONDS = 0.2
_SECONDS_OF_LOG = 30.0
"""The time between lines in a log file. Without any lines, a job would seem to hang."""
_WIDTH = 79

SHORT = 2.0
"""Work that takes less than this many seconds is shown without an estimate."""


def no_progress(phase: str, done: int, total: int) -> None: ...


class Phase:
    """Counts the finished units of a phase and reports them."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._done = 0

    def add(self, count: int) -> None:
        self._done = min(self._done + count, self._total)
        self._progress(self._name, self._done, self._total)


class ProgressLine:
    """A `Progress` that updates one line on a terminal, or adds a line to a log every 30 seconds.

    Once a phase has run for two seconds, the line also estimates the remaining time. The estimate
    ignores the time before the first unit was done, which may include starting a process.

    Args:
        describe: makes the text from the phase, the number of units done, and the total.
        after: how many seconds of a phase pass before anything is shown.
    """

    is_open = False  # whether a progress line on the terminal has no line end yet

    def __init__(
        self,
        describe: Callable[[str, int, int], str],
        clock: Callable[[], float] = time.monotonic,
        *,
        after: float = 0.0,
    ) -> None:
        self._describe, self._clock, self._after = describe, clock, after
        self._last: tuple[str, int] | None = None
        self._next_time = 0.0
        self._next_line = clock() + _SECONDS_OF_LOG
        self._phase: str | None = None
        self._began = 0.0, 0  # start time of the phase, and the units done before it
        self._first: tuple[float, int] | None = None  # time of the first progress, and units done

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = self._clock()
        if self._phase != phase:
            self._phase, self._began, self._first = phase, (now, done), None
        elif self._first is None and done > self._began[1]:
            self._first = now, done
        if not is_terminal():
            if now >= self._next_line:
                self._next_line = now + _SECONDS_OF_LOG
                _write_line(self._describe(phase, done, total) + self._left(now, done, total))
            return
        if now - self._began[0] < self._after:
            return
        is_end = done >= total
        is_new_phase = self._last is None or self._last[0] != phase
        is_due = is_new_phase or is_end or now >= self._next_time
        if self._last == (phase, done) or not is_due:
            return
        self._next_time = now + _SECONDS
        _rewrite(self._describe(phase, done, total) + self._left(now, done, total))
        sys.stderr.write("\n" * is_end)
        self._last = phase, done
        ProgressLine.is_open = not is_end

    def _left(self, now: float, done: int, total: int) -> str:
        if self._first is None or now - self._began[0] < SHORT:
            return ""
        since, before = self._first
        if done >= total or done <= before:
            return ""
        return f", {readable_time((now - since) * (total - done) / (done - before))} left"


def is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def end_line() -> None:
    if ProgressLine.is_open:
        ProgressLine.is_open = False
        sys.stderr.write("\n")


def _write_line(text: str) -> None:
    sys.stderr.write(plain_text.plain(f"estimator-bridge: {text}") + "\n")
    sys.stderr.flush()


def _rewrite(text: str) -> None:
    # A line that the terminal wraps could not be overwritten.
    width = shutil.get_terminal_size().columns - 1
    line = plain_text.plain(f"estimator-bridge: {text}" if text else "")[:width]
    sys.stderr.write(f"\r{line:{min(_WIDTH, width)}}")
    sys.stderr.flush()


def readable_time(seconds: float) -> str:
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


@contextlib.contextmanager
def working(text: str, expected: float) -> Iterator[None]:
    """Shows `text` while work runs; on a terminal, also how much of `expected` seconds is left."""
    ended, began = threading.Event(), time.monotonic()
    rewrites = is_terminal()

    def write_lines() -> None:
        while not ended.wait(_SECONDS_OF_LOG):
            _write_line(f"{text}, {readable_time(time.monotonic() - began)} so far")

    def show() -> None:
        pause = SHORT
        while not ended.wait(pause):
            left = expected - (time.monotonic() - began)
            estimate = f"about {readable_time(left)} left" if left > 1 else "almost done"
            _rewrite(f"{text}, {estimate}")
            sys.stderr.write("\r")  # the program's output overwrites the line
            sys.stderr.flush()
            pause = 1.0
        if time.monotonic() - began >= SHORT:
            _rewrite("")
            sys.stderr.write("\r")

    thread = threading.Thread(target=show if rewrites else write_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
