"""Compares two recordings of sides that run freely, whose rounding errors add up over the steps."""

from __future__ import annotations

import math

import numpy as np

from estimator_bridge.recording.files import CHECKPOINT, VARIABLES, Recording, Step
from estimator_bridge.verification.compare import elements
from estimator_bridge.verification.compare.elements import apart
from estimator_bridge.verification.compare.pairing import PairedName
from estimator_bridge.verification.compare.steps import Judged, StepComparison, measure
from estimator_bridge.verification.compare.tolerance import Tolerance
from estimator_bridge.verification.evidence import StepPair
from estimator_bridge.verification.findings import Divergence, Point
from tf2_engine.types import Array


class FreeComparison(StepComparison):
    """The series of all arrays of two sides that run freely."""

    def __init__(self, a: Recording, b: Recording, tolerance: Tolerance) -> None:
        super().__init__(a, b, tolerance)
        self._start = next((step.values.get(VARIABLES, {}) for step in a.steps()), {})

    def compare_pair(self, pair: StepPair) -> Judged:
        a, b = pair
        if self._settings[1]["engine"] == CHECKPOINT:
            # A checkpoint only has the variables of the last step.
            a = Step(a.number, {group: a.values[group] for group in b.values})
        for group in sorted({*a.values, *b.values}):
            pairs = self._alike(group, (a, b))
            bounds = self.tolerance.of_step(group, a.number, self.num_updates, pairs)
            for name, (one, other) in pairs.items():
                self._add(group, name, one, other, bounds[name])
        return Judged({}, {})

    def finish(self) -> None:
        self.remarks.extend(self.tolerance.remarks)

    def _add(self, group: str, name: PairedName, a: Array, b: Array, bound: float) -> None:
        series, number = self._series_of(group, name), self.steps[-1]
        point, index = measure(number, a, b, bound)
        series.points.append(point)
        self._see(group, name, a, point.allowed)
        if not point.equal:
            series.first = series.first or _divergence(a, b, point, index)

    def _see(self, group: str, name: PairedName, a: Array, allowed: float) -> None:
        """Updates the size of the smallest error of an array that would have been seen so far."""
        series = self.series[group, name.name]
        start = self._start.get(name.name) if group == VARIABLES else np.zeros_like(a)
        if start is None or start.shape != a.shape or not elements.is_float(a.dtype):
            return
        moved = float(np.max(np.abs(apart(start, a)), initial=0.0))
        series.moved |= moved > 0
        series.visible = min(series.visible, allowed / moved if moved else math.inf)


def _divergence(a: Array, b: Array, point: Point, index: tuple[int, ...]) -> Divergence:
    rows = elements.count_rows(elements.differences(a, b) > point.allowed)
    row, element = (index[0] if index else None), (list(index[1:]) or None)
    values = elements.shown(a[index]), elements.shown(b[index])
    return Divergence(point.step, row, element, *values, rows)
