"""Reports on stderr how far a command is."""

from __future__ import annotations

import os
import shutil
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
    """Writes one line per phase on a terminal, over and over, and elsewhere nothing.

    It is a `Progress`.

    Args:
        describe: returns the text for a phase, and how many of how many units of it are done.
    """

    is_open = False  # whether the cursor of the terminal stands in a line of any of these

    def __init__(self, describe: Callable[[str, int, int], str]) -> None:
        self._describe = describe
        self._last: tuple[str, int] | None = None
        self._next_time = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Reports, if it is time to."""
        if not is_terminal():
            return
        is_end = done >= total
        is_new_phase = self._last is None or self._last[0] != phase
        is_due = is_new_phase or is_end or time.monotonic() >= self._next_time
        if self._last == (phase, done) or not is_due:
            return
        self._next_time = time.monotonic() + _SECONDS
        text = plain_text.plain(f"estimator-bridge: {self._describe(phase, done, total)}")
        # One that is broken by the terminal could not be written over.
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{text[:width]:{min(_WIDTH, width)}}" + "\n" * is_end)
        sys.stderr.flush()
        self._last = phase, done
        ProgressLine.is_open = not is_end


def is_terminal() -> bool:
    """Whether stderr is a terminal that can go back to the beginning of a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def end_line() -> None:
    """Ends the line that a progress line has left open, before something else is written."""
    if ProgressLine.is_open:
        ProgressLine.is_open = False
        sys.stderr.write("\n")
