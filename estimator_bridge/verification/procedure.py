"""Records both sides of a comparison, compares them, and explains differences."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping

from estimator_bridge import errors
from estimator_bridge.progress_line import Progress, no_progress
from estimator_bridge.recording import replay
from estimator_bridge.recording.files import Recording
from estimator_bridge.verification.compare import comparison
from estimator_bridge.verification.explain import causes
from estimator_bridge.verification.explain.localisation import localise
from estimator_bridge.verification.explain.search import SECONDS, Search
from estimator_bridge.verification.record import processes
from estimator_bridge.verification.record.requests import PERTURBED, A, B, Record, RecordingRequest
from estimator_bridge.verification.result import Result

_GROSS = 1e-3
"""If settings differ, a relative difference this large is attributed to them.

It is ten thousand times a float32 rounding.
"""


@dataclasses.dataclass(frozen=True)
class ComparisonOptions:
    """The options of a comparison.

    If a `checkpoint` is given, it takes the place of side B. `pythons` are the interpreters that
    query exported models.
    """

    begin_from: str | None = None
    own_input: bool = False
    measure: bool = True
    examples: str | None = None
    free_run: bool = False
    checkpoint: str | None = None
    pythons: Mapping[str, str] | None = None
    search: float = SECONDS


def side_by_side(
    record: Record,
    directory: pathlib.Path,
    options: ComparisonOptions,
    progress: Progress = no_progress,
) -> Result:
    place_a, place_b, place_perturbed = (str(directory / role) for role in (A, B, PERTURBED))
    then = B if options.checkpoint is None else None
    record(RecordingRequest(A, place_a, options.begin_from, next_role=then))
    start = options.begin_from or f"{place_a}/start"
    a, b = Recording(place_a), Recording(place_b)
    batches = None if options.own_input else place_a
    followed = None if options.free_run else place_a
    request_b = RecordingRequest(B, place_b, start, batches, followed)
    if options.checkpoint is None:
        record(request_b)
    else:
        from estimator_bridge.verification.record.checkpoint_side import record_checkpoint

        record_checkpoint(place_b, options.checkpoint, a)
    for role, side in ((A, a), (B, b)):
        if side.exported():
            phase = f"querying the exported models of side {role.upper()}"
            progress(phase, 0, 1)
            python = (options.pythons or {}).get(role, sys.executable)
            processes.query_exported_models(side, a, python, options.examples)
            progress(phase, 1, 1)

    def perturbed(result: Result) -> Recording:
        followed, gradients_of = (place_a, place_b) if result.lockstep else (None, None)
        record(RecordingRequest(PERTURBED, place_perturbed, start, place_a, followed, gradients_of))
        return Recording(place_perturbed)

    result = _compared(a, b, perturbed if options.measure else None, progress)
    search = _explained(result, options.search, progress)
    if options.measure:
        result.causes = localise(record, result, request_b, search)
    result.notes.extend(filter(None, [search.note]))
    return result


def of_recordings(
    directory_a: str, directory_b: str, seconds: float, progress: Progress = no_progress
) -> Result:
    """Compares a recording that `record` has written with the recording of a `Replay`.

    Raises:
        InvalidInput: one of the directories does not contain such a recording.
    """
    a, b = Recording(directory_a), Recording(directory_b)
    a.check()
    b.check()
    if b.replays != replay.identity(a):
        raise errors.InvalidInput(
            f"{directory_b} is not a replay of {directory_a}. Give first the recording that "
            "`record` wrote, then the folder that Replay wrote from it."
        )
    measured = a.measured
    result = _compared(a, b, None if measured is None else lambda _: measured, progress)
    if measured is None and not result.numbers_agree and _may_be_rounding(result):
        result.notes.append(
            "Side A was recorded with --no-measure, so it is unknown how far its model "
            "amplifies rounding. Record it without to know whether the difference is rounding."
        )
    result.notes.extend(filter(None, [_explained(result, seconds, progress).note]))
    return result


def _compared(
    a: Recording,
    b: Recording,
    measured: Callable[[Result], Recording | None] | None,
    progress: Progress,
) -> Result:
    """Compares two recordings; `measured` makes a perturbed run if the verdict depends on one.

    The first step that differs shows whether the perturbed run is needed, so all steps are compared
    only once.
    """
    result = comparison.compare(a, b, progress=progress, until_different=measured is not None)
    if measured is not None and not result.numbers_agree and _may_be_rounding(result):
        return comparison.compare(a, b, measured(result), progress)
    if result.complete:
        return result
    known, result = result.diagnoses, comparison.compare(a, b, progress=progress)
    result.diagnoses = known
    return result


def _explained(result: Result, seconds: float, progress: Progress) -> Search:
    progress("looking for causes", 0, 1)
    search = Search(seconds)
    result.causes = causes.explain(result, search)
    return search


def _may_be_rounding(result: Result) -> bool:
    if any(result.only) or causes.are_conclusive(result):
        return False
    if result.first is None:
        return any(not outcome.equal and not outcome.note for outcome in result.outcomes)
    first = result.first.first
    if first is None or first.step == result.steps[0] or first.rows == 0:
        return False
    # Different quirks do not prove that the quirks caused the difference.
    explained = any(cause.name != causes.QUIRKS for cause in causes.of_settings(result))
    unequal = next(point for point in result.first.points if not point.equal)
    return not (explained or result.config) or unequal.relative < _GROSS
