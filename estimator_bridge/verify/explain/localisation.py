"""Runs both sides once more to find the op of the model that makes them differ."""

from __future__ import annotations

import dataclasses
import pathlib

from estimator_bridge import errors
from estimator_bridge.verify.explain.model_ops import first_differing_op
from estimator_bridge.verify.explain.search import Search
from estimator_bridge.verify.findings import ACTIVATION, Cause
from estimator_bridge.verify.record.recording import (
    CHECKPOINT,
    KERAS,
    A,
    B,
    Record,
    Recording,
    RecordingRequest,
)
from estimator_bridge.verify.result import Result

_WITHOUT_OPS = (KERAS, CHECKPOINT)
"""Engines whose ops are not recorded: Keras makes other ops than a model_fn."""

_WHICH_OP = "which op of the model differs first"

_TO_LOCALISE = ("model", "unknown")
"""Causes that only say that the model computes something else."""


def _is_of_model(result: Result) -> bool:
    """Whether the model may be at fault: no better cause is known, and its inputs agree."""
    names = {cause.name for cause in result.causes}
    agree = result.first is not None and result.first.role != ACTIVATION
    return agree and bool(names & {*_TO_LOCALISE})


def localise(
    record: Record, result: Result, request_b: RecordingRequest, search: Search
) -> list[Cause]:
    """Returns the causes of a result, preceded by the first op of the model that differs, if found.

    Both sides run up to the first step that differs, if the time allows it.

    Args:
        request_b: the request by which side B was recorded; both runs start and read like it.
    """
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
