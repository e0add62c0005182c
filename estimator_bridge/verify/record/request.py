"""What a side of a comparison is asked to record."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

A, B, PERTURBED = "a", "b", "a-perturbed"
"""The roles: both sides, and side A once more, from a start with its last bits changed."""


@dataclasses.dataclass(frozen=True)
class RecordingRequest:
    """One run of a side.

    Attributes:
        role: `A`, `B`, or `PERTURBED`.
        directory: where the recording goes; does not exist yet.
        begin_from: a checkpoint, or None.
        replayed: the directory of the recording whose batches are trained on, or None.
    """

    role: str
    directory: pathlib.Path
    begin_from: str | None = None
    replayed: pathlib.Path | None = None

    @property
    def side(self) -> str:
        """The side that runs: `A` or `B`."""
        return B if self.role == B else A

    @property
    def perturbed(self) -> bool:
        """Whether the last bits of the start are changed."""
        return self.role == PERTURBED


Record = Callable[[RecordingRequest], None]
"""Runs a side, and writes its recording."""
