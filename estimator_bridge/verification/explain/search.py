"""The time limit of the search for causes."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 60.0


class Search:
    """Limits the time of a search for causes; `not_tried` lists the tests that it left out."""

    def __init__(
        self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self.not_tried: list[str] = []
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - self._clock())

    def allows(self, what: str) -> bool:
        if self.left > 0:
            return True
        if what not in self.not_tried:
            self.not_tried.append(what)
        return False

    @property
    def note(self) -> str | None:
        if not self.not_tried:
            return None
        return (
            f"The search for causes ended after {self.seconds:g} s. Not tried: "
            f"{'; '.join(self.not_tried)}. The verdict stands; --search SECONDS, or `search`, "
            "gives the search more time."
        )
