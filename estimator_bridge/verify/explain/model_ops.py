"""Finds the first op of a model whose output differs between two sides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator_bridge.verify.findings import Cause, some
from estimator_bridge.verify.record.recording import MODEL_OPS, Recording
from tf2_engine.types import Array

NAME = "model op"
_DIFFERS = 2.0**-16
"""Outputs differ if their sketches do by more than this, which is 256 float32 roundings."""
_MAX_ALONE = 3


def first_differing_op(a: Recording, b: Recording, step: int) -> Cause | None:
    """Returns the first op whose output differs at a step as a cause, or None.

    Ops are in the order in which the model makes them, so none precedes its inputs.
    """
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
    """Returns the relative distance of two sketches; infinite between NaN and a number."""
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
