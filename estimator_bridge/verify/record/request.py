"""What a side of a comparison is asked to record."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

A, B, PERTURBED = "a", "b", "a-perturbed"
"""The roles: both sides, and side A once more, from a start with its last bits changed."""


@dataclasses.dataclass(frozen=True)
class RecordingRequest:
    """One run of a side.

    Attributes:
        role: `A`, `B`, or `PERTURBED`.
        directory: made for the recording, and the model directories of the side.
        begin_from: a checkpoint, or None.
        replayed: the directory of the recording whose batches are trained on; None is the
            program's own input.
    """

    role: str
    directory: str
    begin_from: str | None = None
    replayed: str | None = None

    @property
    def side(self) -> str:
        """The side that runs: `A` or `B`."""
        return B if self.role == B else A


Record = Callable[[RecordingRequest], None]
"""Runs a side, and writes its recording."""
