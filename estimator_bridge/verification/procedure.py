"""Records both sides of a comparison, compares them, and explains differences."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from estimator_bridge import errors
from estimator_bridge.progress_line import Progress, no_progress
from estimator_bridge.recording import replay
from estimator_bridge.recording.files import CHECKPOINT, KERAS, MODEL_OPS, PORT, Recording
from estimator_bridge.verification.compare import comparison
from estimator_bridge.verification.explain import causes
from estimator_bridge.verification.explain.search import SECONDS, Search
from estimator_bridge.verification.findings import ACTIVATION, Cause, some
from estimator_bridge.verification.record import processes
from estimator_bridge.verification.result import Result
from estimator_bridge.verification.sides import PERTURBED, A, B, Record, RecordingRequest
from tf2_engine.types import Array

_GROSS = 1e-3
"""If settings differ, they count as the cause of relative differences above this limit."""
_WITHOUT_OPS = (KERAS, CHECKPOINT, PORT)
"""Engines whose ops are not recorded, because they do not run the ops of a model_fn."""
_WHICH_OP = "which op of the model differs first"
_TO_LOCALISE = ("model", "unknown")
"""Causes that only say that the models compute different results."""
_MODEL_OP = "model op"
_DIFFERS = 2.0**-16
"""Outputs differ if their sketches differ by more than this, which is 256 float32 roundings."""
_MAX_ALONE = 3


@dataclasses.dataclass(frozen=True)
class ComparisonOptions:
    """The options of a comparison. If there is a `checkpoint`, it is side B."""

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
    """Compares a recording that `record` has written with the recording of a `Replay`."""
    a, b = Recording(directory_a), Recording(directory_b)
    a.check()
    b.check()
    if b.replays != replay.identity(a):
        raise errors.InvalidInput(
            f"{directory_b} is not a replay of {directory_a}. Give first the recording that "
            "`record` wrote, then the folder that Replay wrote from it."
        )
    measured = a.measured
    result = comparison.compare(a, b, progress=progress)
    if measured is not None and not result.numbers_agree:
        judged = comparison.compare(a, b, measured, progress)
        if not judged.numbers_agree or _may_be_rounding(result):
            result = judged
    if measured is None and not result.numbers_agree and _may_be_rounding(result):
        result.notes.append(
            "Side A was recorded with --no-measure, so it is unknown how far its model "
            "amplifies rounding. Record it without that option to learn whether the difference is "
            "rounding."
        )
    result.notes.extend(filter(None, [_explained(result, seconds, progress).note]))
    return result


def _compared(
    a: Recording,
    b: Recording,
    measured: Callable[[Result], Recording | None] | None,
    progress: Progress,
) -> Result:
    # The first step that differs shows whether the perturbed run is needed, so all steps are
    # compared only once.
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


def _is_of_model(result: Result) -> bool:
    names = {cause.name for cause in result.causes}
    agree = result.first is not None and result.first.role != ACTIVATION
    return agree and bool(names & {*_TO_LOCALISE})


def localise(
    record: Record, result: Result, request_b: RecordingRequest, search: Search
) -> list[Cause]:
    """Runs both sides again to find the first op that differs, which becomes the first cause."""
    first = result.first.first if result.first else None
    engine = result.settings[1]["engine"]
    if first is None or not _is_of_model(result) or engine in _WITHOUT_OPS:
        return result.causes
    directory = pathlib.Path(request_b.directory).parent
    sides = []
    for side in (A, B):
        role = f"{side}-ops"
        place = str(directory / role)
        # Side A continues from its own state, whatever side B does.
        like = request_b if side == B else RecordingRequest(A, place, request_b.begin_from)
        if not search.allows(_WHICH_OP):
            return result.causes
        request = dataclasses.replace(
            like,
            role=role,
            directory=place,
            replayed=request_b.replayed,
            sketches=True,
            steps=first.step - result.steps[0],
            seconds=search.left,
        )
        try:
            record(request)
        except errors.EngineError:  # the verdict stands without this second run
            search.allows(_WHICH_OP)
            return result.causes
        sides.append(Recording(place))
    cause = first_differing_op(sides[0], sides[1], first.step)
    if cause is None:
        return result.causes
    return [cause, *(one for one in result.causes if one.name not in _TO_LOCALISE)]


def first_differing_op(a: Recording, b: Recording, step: int) -> Cause | None:
    ops_a, ops_b = a.model_ops, b.model_ops
    sketch_a, sketch_b = _sketch(a, step), _sketch(b, step)
    if sketch_a is None or sketch_b is None:
        return None
    number_of = {op[0]: number for number, op in enumerate(ops_b)}
    alone: list[str] = []
    for number, (name, kind, source) in enumerate(ops_a[: len(sketch_a)]):
        other = number_of.get(name)
        if other is None or ops_b[other][1] != kind:
            alone.append(_shown(name, kind, source))
            continue
        apart = _relative(sketch_a[number], sketch_b[other])
        if apart > _DIFFERS:
            return Cause(
                _MODEL_OP,
                f"The first op of the model whose output differs is {_shown(name, kind, source)}. "
                f"The relative difference is {apart:.1e} at step {step}, although the op's inputs "
                f"agree.{_alone('A', alone)}",
            )
    names = {op[0] for op in ops_a}
    more = [_shown(*op) for op in ops_b if op[0] not in names]
    if not alone and not more:
        return None
    seen = f"{_alone('A', alone)}{_alone('B', more)}"
    return Cause(_MODEL_OP, f"At step {step}, all ops that both models have agree.{seen}")


def _sketch(side: Recording, step: int) -> Array | None:
    values = next((one.values for one in side.steps() if one.number == step), {})
    return values.get(MODEL_OPS, {}).get("sketch")


def _relative(a: Array, b: Array) -> float:
    if np.array_equal(a, b, equal_nan=True):
        return 0.0
    if not np.isfinite([*a, *b]).all():
        return np.inf
    size = max(a[1], b[1])
    # Summing the same terms in another order differs by a float64 rounding.
    return float(np.max(np.abs(a - b)) / size) if size else 0.0


def _alone(side: str, ops: Sequence[str]) -> str:
    if not ops:
        return ""
    return f" On side {side} alone: {some(ops, _MAX_ALONE)}."


def _shown(name: str, kind: str, source: str) -> str:
    return f"{name} ({kind}{f', {source}' if source else ''})"
