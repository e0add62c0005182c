"""The runs that a comparison needs: of either side, and of side A with changed last bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

A, B, PERTURBED = "a", "b", "a-perturbed"
"""The roles: both sides, and side A again from a start with changed last bits."""


@dataclasses.dataclass(frozen=True)
class RecordingRequest:
    """One run of a side.

    Attributes:
        role: which side runs: `A`, `B`, or `PERTURBED`.
        replayed: the recording whose batches the run trains on.
        followed: the recording whose variables the side takes over after every recorded step.
        gradients_of: the recording whose gradients the `PERTURBED` side applies.
        sketches: whether to record a sketch of the value of each op of the model.
        steps: the run may end after this many steps; None means when the program ends.
        seconds: the run fails if it takes more seconds than this.
        next_role: the role of the next run, whose process is started now and waits.
    """

    role: str
    directory: str
    begin_from: str | None = None
    replayed: str | None = None
    followed: str | None = None
    gradients_of: str | None = None
    sketches: bool = False
    steps: int | None = None
    seconds: float | None = None
    next_role: str | None = None

    @property
    def side(self) -> str:
        return side_of_role(self.role)


def side_of_role(role: str) -> str:
    return B if role.partition("-")[0] == B else A


Record = Callable[[RecordingRequest], None]
"""Runs a side, and writes its recording."""
