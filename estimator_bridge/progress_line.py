"""Reports on stderr how far a command is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tf2_engine import plain_text

Progress = Callable[[str, int, int], None]
"""Called with the name of a phase, and how many of how many units of it are done."""

_SECONDS = 0.2
_WIDTH = 60


def no_progress(phase: str, done: int, total: int) -> None:
    """Reports nothing."""


class ProgressLine:
    """Writes one line per phase on a terminal, over and over; elsewhere up to eleven lines.

    It is a `Progress`.

    Args:
        describe: returns the text for a phase, and how many of how many units of it are done.
    """

    def __init__(self, describe: Callable[[str, int, int], str]) -> None:
        self._describe = describe
        self._last: tuple[str, int] | None = None
        self._next_time = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Reports, if it is time to."""
        text = plain_text.plain(f"estimator-bridge: {self._describe(phase, done, total)}")
        is_end = done >= total
        if not sys.stderr.isatty():
            # A log needs no more than every tenth of a phase.
            tenth = 10 if is_end else 10 * done // total
            if self._last != (phase, tenth):
                sys.stderr.write(f"{text}.\n")
            self._last = phase, tenth
            return
        is_new_phase = self._last is None or self._last[0] != phase
        is_due = is_new_phase or is_end or time.monotonic() >= self._next_time
        if self._last != (phase, done) and is_due:
            self._next_time = time.monotonic() + _SECONDS
            sys.stderr.write(f"\r{text:{_WIDTH}}" + "\n" * is_end)
            sys.stderr.flush()
            self._last = phase, done
