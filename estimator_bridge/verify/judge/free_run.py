"""Compares two recordings of sides that run freely, whose rounding adds up over the steps."""

from __future__ import annotations

import math

import numpy as np

from estimator_bridge.verify import findings
from estimator_bridge.verify.evidence import StepPair
from estimator_bridge.verify.findings import Divergence
from estimator_bridge.verify.judge import elements
from estimator_bridge.verify.judge.pairing import ArrayPair, PairedName
from estimator_bridge.verify.judge.residual import apart
from estimator_bridge.verify.judge.steps import StepComparison, measure
from estimator_bridge.verify.judge.tolerance import Tolerance
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.record.recording import VARIABLES, Recording, Step
from tf2_engine.types import Array


class FreeComparison(StepComparison):
    """The series of all arrays of two sides that run freely, as they grow step by step."""

    def __init__(self, a: Recording, b: Recording, tolerance: Tolerance) -> None:
        super().__init__(a, b, tolerance)
        self._start = next((step.values.get(VARIABLES, {}) for step in a.steps()), {})

    def compare_pair(self, pair: StepPair) -> bool:
        """Adds a step to the series; returns whether anything diverged in it."""
        a, b = pair
        if self._settings[1]["engine"] == recording.CHECKPOINT:
            # A checkpoint has the variables of the last step alone, and nothing before it.
            a = Step(a.number, {group: a.values[group] for group in b.values})
        self.steps.append(a.number)
        diverged = False
        for group in sorted({*a.values, *b.values}):
            pairs = self._pairing.paired(group, a.values.get(group, {}), b.values.get(group, {}))
            bounds = self.tolerance.of_step(group, a.number, self.num_updates, pairs)
            for name, arrays in pairs.items():
                diverged |= self._add(group, name, arrays, bounds[name])
        return diverged

    def finish(self) -> None:
        """Notes why faults cannot be told from rounding."""
        self.remarks.extend(self.tolerance.remarks)

    def _add(self, group: str, name: PairedName, arrays: ArrayPair, bound: float) -> bool:
        """Adds a point to the series of an array; returns whether it diverges."""
        a, b = arrays
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return self._add_shapes(group, name, a, b)
        series, number = self._series_of(group, name), self.steps[-1]
        point, index = measure(number, a, b, bound)
        series.points.append(point)
        self._see(group, name, a, point.allowed)
        if point.equal:
            return False
        series.first = series.first or _divergence(a, b, point, index)
        return True

    def _see(self, group: str, name: PairedName, a: Array, allowed: float) -> None:
        """Notes how small a divergence of an array would have been seen by now."""
        series = self.series[group, name.name]
        start = self._start.get(name.name) if group == VARIABLES else np.zeros_like(a)
        if start is None or start.shape != a.shape or not elements.is_float(a.dtype):
            return
        moved = float(np.max(np.abs(apart(start, a)), initial=0.0))
        series.moved |= moved > 0
        series.visible = min(series.visible, allowed / moved if moved else math.inf)


def _divergence(a: Array, b: Array, point: findings.Point, index: tuple[int, ...]) -> Divergence:
    """Returns where two arrays of one shape differ by more than the tolerance."""
    differs = elements.differences(a, b) > point.allowed
    rows = int(np.count_nonzero(differs.reshape(len(differs), -1).any(1))) if differs.ndim else 1
    row, element = (index[0] if index else None), (list(index[1:]) or None)
    values = elements.shown(a[index]), elements.shown(b[index])
    return Divergence(point.step, row, element, *values, rows)
