"""The order of a comparison: one side, the other from its start on its batches, and the verdict."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping

from estimator_bridge.verify import asking, causes, compare
from estimator_bridge.verify.compare import Progress, untold
from estimator_bridge.verify.recording import Recording
from estimator_bridge.verify.result import Result

A, B, NUDGED = "a", "b", "a-nudged"


@dataclasses.dataclass(frozen=True)
class Order:
    """What a side is to do.

    Attributes:
        role: "a", "b", or "a-nudged": side A once more, from a start that is off by its last bits.
        directory: where its recording goes; not there yet.
        begin_from: a checkpoint, or None.
        replayed: where the recording is whose batches are trained on, or None.
    """

    role: str
    directory: pathlib.Path
    begin_from: str | None
    replayed: pathlib.Path | None

    @property
    def nudged(self) -> bool:
        """Whether the start is to be moved by its last bits."""
        return self.role == NUDGED


def side_by_side(
    record: Callable[[Order], None],
    directory: pathlib.Path,
    *,
    begin_from: str | None = None,
    own_input: bool = False,
    measure: bool = True,
    pythons: Mapping[str, str] | None = None,
    examples: str | None = None,
    checkpoint: str | None = None,
    progress: Progress = untold,
) -> Result:
    """Has both sides recorded, and compares them.

    Args:
        record: does what it is told.
        directory: of the recordings.
        begin_from: a checkpoint; None begins with the initial values of side A.
        own_input: side B reads its own input instead of the batches of side A.
        measure: where numbers differ by more than the rounding of tables explains, side A trains
            once more from a nudged start, and what that moves is allowed too.
        pythons: in which exported models answer, by the role of a side; None is this interpreter.
        examples: see `asking.ask`.
        checkpoint: side B; None has it recorded.
        progress: is told what happens after the recording.
    """
    where = {role: directory / role for role in (A, B, NUDGED)}
    record(Order(A, where[A], begin_from, None))
    start = begin_from or str(where[A] / "start")
    a, b = Recording(where[A]), Recording(where[B])
    if checkpoint is None:
        record(Order(B, where[B], start, None if own_input else where[A]))
    else:
        from estimator_bridge.verify import saved

        saved.record(where[B], checkpoint, a)
    for role, side in ((A, a), (B, b)):
        if side.exported():
            progress(f"asking what side {role.upper()} exported", 0, 1)
            asking.ask(side, a, (pythons or {}).get(role, sys.executable), examples)
            progress(f"asking what side {role.upper()} exported", 1, 1)
    result = compare.compare(a, b, progress=progress)
    if measure and not result.numbers_agree and _may_be_rounding(result):
        record(Order(NUDGED, where[NUDGED], start, where[A]))
        measured = compare.sensitivity_of(a, Recording(where[NUDGED]))
        result = compare.compare(a, b, measured, progress=progress)
    result.causes = causes.explain(result)
    return result


def _may_be_rounding(result: Result) -> bool:
    """Whether the sides do the same, as far as can be told, and begin alike."""
    told = [cause for cause in causes.of_settings(result) if cause.name != causes.QUIRKS]
    # That quirks may tell the sides apart does not mean that they do.
    if any(result.only) or result.config or told:
        return False
    if result.first is None:
        return any(not outcome.equal and not outcome.note for outcome in result.outcomes)
    first = result.first.first
    return first is not None and first.step > result.steps[0] and first.rows > 0
