"""Runs both sides once more to find the first op of the model whose output differs."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from estimator_bridge import errors
from estimator_bridge.recording.files import CHECKPOINT, KERAS, MODEL_OPS, PORT, Recording
from estimator_bridge.verification.explain.search import Search
from estimator_bridge.verification.findings import ACTIVATION, Cause, some
from estimator_bridge.verification.record.requests import A, B, Record, RecordingRequest
from estimator_bridge.verification.result import Result
from tf2_engine.types import Array

_WITHOUT_OPS = (KERAS, CHECKPOINT, PORT)
"""Engines whose ops are not recorded, because they do not run the ops of a model_fn."""

_WHICH_OP = "which op of the model differs first"

_TO_LOCALISE = ("model", "unknown")
"""Causes that say no more than that the models compute different results."""


NAME = "model op"
_DIFFERS = 2.0**-16
"""Outputs differ if their sketches differ by more than this, which is 256 float32 roundings."""
_MAX_ALONE = 3


def _is_of_model(result: Result) -> bool:
    names = {cause.name for cause in result.causes}
    agree = result.first is not None and result.first.role != ACTIVATION
    return agree and bool(names & {*_TO_LOCALISE})


def localise(
    record: Record, result: Result, request_b: RecordingRequest, search: Search
) -> list[Cause]:
    """Searches for the first op of the model that differs; puts it first among the causes.

    Both sides run again, up to the first step that differs. They start and read input as
    `request_b` says.
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
                NAME,
                f"The first op of the model whose output differs is {_shown(name, kind, source)}: "
                f"by {apart:.1e} of its size at step {step}. What it is computed from agrees."
                f"{_alone('A', alone)}",
            )
    names = {op[0] for op in ops_a}
    more = [_shown(*op) for op in ops_b if op[0] not in names]
    if not alone and not more:
        return None
    seen = f"{_alone('A', alone)}{_alone('B', more)}"
    return Cause(NAME, f"All ops of the model that both sides have agree at step {step}.{seen}")


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
