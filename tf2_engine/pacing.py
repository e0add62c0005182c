"""Decides at which steps a periodic action is due."""

from __future__ import annotations

import time

from tf2_engine import errors


class Pace:
    """Decides at which steps an action is due: at the first step, and then at intervals.

    Args:
        seconds, steps: the interval, in one of the two units.
    """

    def __init__(self, seconds: float | None, steps: int | None) -> None:
        if (seconds is None) == (steps is None):
            raise errors.InvalidInput(
                "Give the interval either in seconds or in steps, and None for the other unit; got "
                f"seconds={seconds} and steps={steps}."
            )
        self._seconds, self._steps = seconds, steps
        self._latest = -float("inf")

    def is_due(self, step: int) -> bool:
        now = float(step) if self._steps is not None else time.monotonic()
        if now - self._latest < float(self._steps or self._seconds or 0):
            return False
        self._latest = now
        return True
