"""Compares the steps of two recordings, array by array."""

from __future__ import annotations

import abc
import itertools
from typing import NamedTuple

import numpy as np

from estimator_bridge.progress_line import Progress
from estimator_bridge.recording.files import VARIABLES, Recording
from estimator_bridge.verification.compare import elements, scope
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.joined_cores import ids_of_step, joined_step
from estimator_bridge.verification.compare.pairing import ArrayPair, PairedName, Pairing
from estimator_bridge.verification.compare.tolerance import Tolerance
from estimator_bridge.verification.evidence import Evidence, Residual, StepPair
from estimator_bridge.verification.findings import Divergence, Point, Series
from tf2_engine.types import Array


class Judged(NamedTuple):
    """What the arrays of one step showed, by group and side A's name; see `Evidence`."""

    residuals: dict[tuple[str, str], Residual]
    systematic: dict[tuple[str, str], float]


class StepComparison(abc.ABC):
    """The series of all arrays, which grow step by step.

    Attributes:
        steps: the global steps that were compared, starting with the initial state.
        remarks: reasons besides the arrays why the sides are not equal.
        only: the arrays that only one side has, by group and name.
    """

    def __init__(self, a: Recording, b: Recording, tolerance: Tolerance) -> None:
        self.series: dict[tuple[str, str], Series] = {}
        self.steps: list[int] = []
        self.remarks: list[str] = []
        self.evidence: Evidence | None = None
        self._sides = a, b
        self._settings = a.settings, b.settings
        self.tolerance = tolerance
        of_a, of_b = self._settings
        self._pairing = Pairing(of_a["tables"], of_b["tables"], scope.computed(of_a, of_b))
        self.only = self._pairing.only

    @property
    def num_updates(self) -> int:
        return self.steps[-1] - self.steps[0] if self.steps else 0

    def run(self, progress: Progress) -> None:
        total = len(self._sides[0].numbers())
        states: tuple[StepPair, ...] = ()
        sides = (map(joined_step, side.steps()) for side in self._sides)
        for step_a, step_b in itertools.zip_longest(*sides):
            progress("comparing", len(self.steps), total)
            if step_a is None or step_b is None:
                self.remarks.append(f"side {'B' if step_a is None else 'A'} made more steps")
                break
            pair = step_a, step_b
            self.steps.append(step_a.number)
            judged = self.compare_pair(pair)
            if self.evidence is not None:
                following = self.evidence.following or pair
                self.evidence = self.evidence._replace(following=following)
            elif any(series.first is not None for series in self.series.values()):
                self.evidence = self._evidence(states, pair, judged)
            if VARIABLES in step_a.values:
                states = (self._state_of(pair), *states)[:2]
        self.finish()
        progress("comparing", total, total)

    @abc.abstractmethod
    def compare_pair(self, pair: StepPair) -> Judged:
        """Adds the latest step in `steps` to the series."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Judges all steps together."""

    def _state_of(self, pair: StepPair) -> StepPair:
        return pair

    def _evidence(self, states: tuple[StepPair, ...], pair: StepPair, judged: Judged) -> Evidence:
        evidence = Evidence(self._settings, states, pair, None, **judged._asdict())
        if not self.num_updates:
            return evidence
        side, settings = self._sides[0], self._settings[0]
        position, cores = self.num_updates - 1, settings["cores"]
        batch = side.batch(position) if cores == 1 else None
        ids = ids_of_step(side, position, cores, lookups.features_of(settings["tables"]))
        return evidence._replace(batch=batch, position=position, ids=ids)

    def _series_of(self, group: str, name: PairedName) -> Series:
        return self.series.setdefault(
            (group, name.name), Series(group, name.name, name.table, name.role)
        )

    def _alike(self, group: str, pair: StepPair) -> dict[PairedName, ArrayPair]:
        """Returns arrays of equal type and shape; records other common ones as diverged."""
        alike: dict[PairedName, ArrayPair] = {}
        of_a, of_b = (step.values.get(group, {}) for step in pair)
        for name, (a, b) in self._pairing.paired(group, of_a, of_b).items():
            if (a.shape, a.dtype) == (b.shape, b.dtype):
                alike[name] = a, b
                continue
            series = self._series_of(group, name)
            kinds = [f"{elements.type_name(one)} {list(one.shape)}" for one in (a, b)]
            divergence = Divergence(self.steps[-1], None, None, kinds[0], kinds[1], 0)
            series.first = series.first or divergence
        return alike


def measure(step: int, a: Array, b: Array, bound: float) -> tuple[Point, tuple[int, ...]]:
    """Returns the largest difference and its index.

    `bound` is the allowed difference of floats; other types must be equal.
    """
    if not a.size:
        return Point(step, 0.0, 0.0, 0, bound), ()
    differences = elements.differences(a, b)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(differences), a.shape))
    scale = elements.magnitude(a, b)
    largest = float(differences[index])
    relative = largest / scale if scale else 0.0
    allowed = bound if elements.is_float(a.dtype) else 0.0
    return Point(step, largest, relative, elements.ulps(a[index], b[index]), allowed), index
