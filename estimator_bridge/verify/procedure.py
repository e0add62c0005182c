"""The course of a comparison: both sides are recorded, compared, and explained."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Mapping

from estimator_bridge.progress_line import Progress, no_progress
from estimator_bridge.verify import causes
from estimator_bridge.verify.findings import Series
from estimator_bridge.verify.judge import compare
from estimator_bridge.verify.localisation import localise
from estimator_bridge.verify.record import processes
from estimator_bridge.verify.record.recording import (
    PERTURBED,
    A,
    B,
    Record,
    Recording,
    RecordingRequest,
)
from estimator_bridge.verify.result import Result
from estimator_bridge.verify.search import SECONDS, Search

_GROSS = 1e-3
"""A difference, relative to the largest of its array, that settings explain if any differs.

It is ten thousand times as much as a float32 rounding.
"""


@dataclasses.dataclass(frozen=True)
class ComparisonOptions:
    """The options of a comparison.

    Attributes:
        begin_from, own_input, measure, examples, free_run, search: as for `api.verify`.
        checkpoint: side B; None has it recorded.
        pythons: in which exported models answer, by the role of a side; None is this interpreter.
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
    """Records both sides in a directory, and returns the result of a comparison, with causes.

    `progress` is called with what happens after the recording.
    """
    place_a, place_b, place_perturbed = (str(directory / role) for role in (A, B, PERTURBED))
    record(RecordingRequest(A, place_a, options.begin_from))
    start = options.begin_from or f"{place_a}/start"
    a, b = Recording(place_a), Recording(place_b)
    batches = None if options.own_input else place_a
    followed = None if options.free_run else place_a
    request_b = RecordingRequest(B, place_b, start, batches, followed)
    if options.checkpoint is None:
        record(request_b)
    else:
        from estimator_bridge.verify.record.checkpoint_side import record_checkpoint

        record_checkpoint(place_b, options.checkpoint, a)
    for role, side in ((A, a), (B, b)):
        if side.exported():
            phase = f"querying the exported models of side {role.upper()}"
            progress(phase, 0, 1)
            python = (options.pythons or {}).get(role, sys.executable)
            processes.query_exported_models(side, a, python, options.examples)
            progress(phase, 1, 1)
    result = compare.compare(a, b, progress=progress)
    if options.measure and not result.numbers_agree and _may_be_rounding(result):
        followed, gradients_of = (place_a, place_b) if result.lockstep else (None, None)
        record(RecordingRequest(PERTURBED, place_perturbed, start, place_a, followed, gradients_of))
        result = compare.compare(a, b, Recording(place_perturbed), progress)
    progress("looking for causes", 0, 1)
    search = Search(options.search)
    result.causes = causes.explain(result, search)
    if options.measure:
        result.causes = localise(record, result, request_b, search)
    result.notes.extend(filter(None, [search.note]))
    return result


def _may_be_rounding(result: Result) -> bool:
    """Returns whether the sides begin alike, and differ by no more than rounding may make of it.

    A setting that differs is no reason to take the difference for its effect: it may have none.
    """
    if any(result.only) or causes.are_conclusive(result):
        return False
    if result.first is None:
        return any(not outcome.equal and not outcome.note for outcome in result.outcomes)
    first = result.first.first
    if first is None or first.step == result.steps[0] or first.rows == 0:
        return False
    # That quirks may tell the sides apart does not mean that they do.
    explained = any(cause.name != causes.QUIRKS for cause in causes.of_settings(result))
    return not (explained or result.config) or _is_slight(result.first)


def _is_slight(series: Series) -> bool:
    """Returns whether an array that diverges does so by little, when it first does."""
    first = next(point for point in series.points if not point.equal)
    return first.relative < _GROSS
