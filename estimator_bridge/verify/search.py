"""The search for the causes of a difference: how long it may take, and what it did not try."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 60.0
"""The time that a search may take where nobody says otherwise."""


class Search:
    """A search that ends after some seconds, which count from its making.

    Args:
        seconds: 0 tries nothing that takes time.
        clock: returns seconds.

    Attributes:
        seconds: as given.
        not_tried: what there was no time for, in words, in the order in which it came up.
    """

    def __init__(
        self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self.not_tried: list[str] = []
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self._end - self._clock())

    def allows(self, what: str) -> bool:
        """Returns whether there is time to try something; what there is not is kept."""
        if self.left > 0:
            return True
        self.skip(what)
        return False

    def skip(self, what: str) -> None:
        """Keeps something that was not tried, or not to its end."""
        if what not in self.not_tried:
            self.not_tried.append(what)

    @property
    def note(self) -> str | None:
        """A sentence that says what was not tried; None if all was."""
        if not self.not_tried:
            return None
        return (
            f"The search for causes ended after {self.seconds:g} s. Not tried: "
            f"{'; '.join(self.not_tried)}. The verdict stands; --search SECONDS, or `search`, "
            "gives the search more time."
        )
