"""Reports on stderr how far a command is, and how long it will take."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from estimator_bridge import plain_text

Progress = Callable[[str, int, int], None]
"""Called with the name of a phase, and how many of how many units of it are done."""

_SECONDS = 0.2
_WIDTH = 79

SHORT = 2.0
"""Seconds: what takes no longer needs no estimate."""


def no_progress(phase: str, done: int, total: int) -> None:
    """Reports nothing."""


class ProgressLine:
    """Writes one line per phase on a terminal, over and over; elsewhere up to eleven lines.

    It is a `Progress`. After two seconds of a phase the line says how long it will take from there.

    Args:
        describe: returns the text for a phase, and how many of how many units of it are done.
        clock: returns seconds.
    """

    def __init__(
        self,
        describe: Callable[[str, int, int], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._describe, self._clock = describe, clock
        self._last: tuple[str, int] | None = None
        self._next_time = 0.0
        self._phase: str | None = None
        self._began = 0.0, 0  # when the phase began, and with how many units

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Reports, if it is time to."""
        now = self._clock()
        if self._phase != phase:
            self._phase, self._began = phase, (now, done)
        told = self._describe(phase, done, total) + self._left(now, done, total)
        text = plain_text.plain(f"estimator-bridge: {told}")
        is_end = done >= total
        if not sys.stderr.isatty():
            # A log needs no more than every tenth of a phase.
            tenth = 10 if is_end else 10 * done // total
            if self._last != (phase, tenth):
                sys.stderr.write(f"{text}.\n")
            self._last = phase, tenth
            return
        is_new_phase = self._last is None or self._last[0] != phase
        is_due = is_new_phase or is_end or now >= self._next_time
        if self._last != (phase, done) and is_due:
            self._next_time = now + _SECONDS
            sys.stderr.write(f"\r{text:{_WIDTH}}" + "\n" * is_end)
            sys.stderr.flush()
            self._last = phase, done

    def _left(self, now: float, done: int, total: int) -> str:
        """Returns how long the rest takes at the pace of the phase; "" while that is not known."""
        since, before = self._began
        if done >= total or done <= before or now - since < SHORT:
            return ""
        return f", {readable_time((now - since) * (total - done) / (done - before))} left"


def readable_time(seconds: float) -> str:
    """Returns seconds as a person says them: "45 s", "2 min 5 s", "1 h 10 min"."""
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
    """Shows on a terminal that something works whose steps cannot be counted, after two seconds.

    Args:
        text: what is done.
        expected: about how many seconds it takes.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended, began = threading.Event(), time.monotonic()

    def show() -> None:
        pause = SHORT
        while not ended.wait(pause):
            left = expected - (time.monotonic() - began)
            told = f"about {readable_time(left)} left" if left > 1 else "any moment"
            sys.stderr.write(f"\r{f'estimator-bridge: {text}, {told}':{_WIDTH}}")
            sys.stderr.flush()
            pause = 1.0
        if time.monotonic() - began >= SHORT:
            sys.stderr.write(f"\r{'':{_WIDTH}}\r")

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
