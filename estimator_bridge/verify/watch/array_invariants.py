"""Invariants of everything that a job computes: finite numbers, and counted steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from estimator_bridge.verify.record.recording import LOSS, VARIABLES
from estimator_bridge.verify.watch.interval import Interval
from estimator_bridge.verify.watch.violation import FINITE, STEP, Violation
from tf2_engine.types import Array

_GLOBAL_STEP = "global_step"
_KINDS = {"variables": "variable", "activations": "activation of feature", "loss": "the"}


def check_finite(interval: Interval) -> Iterator[Violation]:
    for step in interval.steps:
        for group, values in step.values.items():
            for name, array in values.items():
                was_finite = group != VARIABLES or name not in interval.before
                was_finite = was_finite or _is_finite(interval.before[name])
                if was_finite and not _is_finite(array):
                    where = f"{_KINDS.get(group, 'gradient of')} {name}"
                    yield Violation(step.number, FINITE, where, _first_not_finite(array))


def check_global_step(interval: Interval) -> Iterator[Violation]:
    """Yields a violation if the global step does not count the steps."""
    before, after = interval.before.get(_GLOBAL_STEP), interval.after.get(_GLOBAL_STEP)
    if before is None or after is None:
        return
    counted = int(after) - int(before)
    computed = sum(LOSS in step.values for step in interval.steps)
    if counted != (computed or len(interval.steps)):
        text = f"it grew by {counted} in {computed or len(interval.steps)} step(s)"
        yield Violation(interval.number, STEP, f"variable {_GLOBAL_STEP}", text)


def _is_finite(array: Array) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _first_not_finite(array: Array) -> str:
    bad = ~np.isfinite(array)
    where = np.argwhere(bad)[0].tolist()
    count = int(np.count_nonzero(bad))
    place = f"element {where} " if where else ""
    return f"{place}is {array[tuple(where)]}; {count} of {array.size} are not finite"
