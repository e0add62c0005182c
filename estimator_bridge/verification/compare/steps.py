"""Compares the judged steps of two recordings, array by array."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from estimator_bridge.progress_line import Progress
from estimator_bridge.recording.files import GRADIENTS, VARIABLES, Recording
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.arithmetic.rounded import UNIT_ROUNDOFF
from estimator_bridge.verification.compare.elements import point_of, spacing
from estimator_bridge.verification.compare.paired_steps import PairedName, PairedStep, ids_of_step
from estimator_bridge.verification.findings import (
    LIMIT,
    TABLE,
    Divergence,
    Evidence,
    Residual,
    Series,
    StepPair,
)
from tf2_engine.types import Array

Key = tuple[str, str]
"""The group of an array and its name on side A."""
Judged = tuple[str, PairedName, Residual]
"""The group of an array, its names, and how it differs in a step."""

_NOISE = 1e-4
"""A gradient that is smaller than this share of the largest gradient may be only rounding.

The gradient of a bias before a batch norm is an example.
"""
_DEVIATIONS = 4.5
"""Two counts of jumps differ if they are this many standard deviations apart.

Chance causes that in one of 300,000 arrays.
"""
SIGNIFICANT = 6.0
"""A count is not due to chance if it is off by more standard deviations than this.

Chance causes that in one of a thousand million counts.
"""
SMALLEST_FACTOR = 4e-6
"""If side B moves 1 + f times as far as A, this counts only if |f| is larger (67 roundings).

Constants in float32, and rates that are computed differently, differ by a few tens of roundings.
"""


class ArrayHistory:
    """The differences of one array in all steps, and the smallest error that would be seen."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self.power = Power()
        self._jumps: list[tuple[int, int, int]] = []

    def add(self, number: int, residual: Residual, whole: Array) -> float | None:
        """Adds a step. Returns f if side B moves the whole array 1 + f times as far, else None."""
        series, power = self.series, self.power
        point, divergence = point_of(number, residual)
        allowed = np.broadcast_to(residual.allowed, residual.apart.shape)
        factors = power.add(allowed, residual.moved)
        if residual.rows is not None and series.role == TABLE and len(residual.rows):
            power.add_rows(factors, residual.rows, len(whole))
        systematic = None
        if residual.bias is not None and divergence is None:
            gaps = spacing(residual.a)
            if power.add_signs(residual.apart, residual.moved, gaps, residual.bias):
                systematic = power.factor
                note = (
                    f"side B moves {1 + systematic:.6g} times as far: {power.along} elements "
                    f"differ along the movement, and {power.against} against it"
                )
                divergence = Divergence(number, None, None, "", "", 0, note=note)
                point = point._replace(systematic=True)
        if residual.jumps is not None:
            self._jumps.append((number, *residual.jumps))
        series.points.append(point)
        series.first = series.first or divergence
        return systematic

    def finish(self) -> None:
        series, power = self.series, self.power
        # A clipped element has no tolerance, but float32 values cannot differ by less than this.
        series.visible, series.moved = max(power.visible, UNIT_ROUNDOFF), power.moved
        if power.row_factors is not None:
            moved = np.isfinite(power.row_factors)
            undecided = np.flatnonzero(moved & (power.row_factors > LIMIT))
            series.rows_moved = int(np.count_nonzero(moved))
            series.rows_decided = series.rows_moved - len(undecided)
            series.undecided_row = int(undecided[0]) if len(undecided) else None
        ours, theirs = (sum(one[side] for one in self._jumps) for side in (1, 2))
        if is_more(ours, theirs) and series.first is None:
            note = (
                f"{ours} samples differ by more than rounding usually causes, but changing the "
                f"last bits of activations causes this in only {theirs} samples"
            )
            step = next(number for number, jumps, _ in self._jumps if jumps)
            series.first = Divergence(step, None, None, "", "", ours, note=note)


class ComparedSteps:
    """Collects the differences of all arrays, and the evidence around the first divergence.

    Attributes:
        numbers: the global steps that were compared, starting with the initial state.
        only: the arrays that only one side has, as "<group> <name>".
        remarks: reasons, apart from single arrays, why the sides are not equal.
        complete: whether all steps were compared.
    """

    def __init__(
        self, a: Recording, b: Recording, only: tuple[set[str], set[str]], *, lockstep: bool
    ) -> None:
        self.numbers: list[int] = []
        self.only = only
        self.remarks: list[str] = []
        self.evidence: Evidence | None = None
        self.complete = True
        self._sides, self._lockstep = (a, b), lockstep
        self._histories: dict[Key, ArrayHistory] = {}
        self._states: tuple[StepPair, ...] = ()

    @property
    def series(self) -> dict[Key, Series]:
        return {key: each.series for key, each in self._histories.items()}

    @property
    def num_updates(self) -> int:
        return self.numbers[-1] - self.numbers[0] if self.numbers else 0

    def run(
        self,
        steps: Iterable[tuple[PairedStep, Iterator[Judged]]],
        progress: Progress,
        *,
        until_different: bool,
    ) -> None:
        total, others = (len(side.numbers()) for side in self._sides)
        for step, judged in steps:
            progress("comparing", len(self.numbers), total)
            self._add(step, judged)
            if until_different and self.evidence is not None and self.evidence.following:
                self.complete = False
                break
        progress("comparing", total, total)
        if total != others:
            self.remarks.append(f"side {'A' if total > others else 'B'} ran more steps")
        for history in self._histories.values():
            history.finish()
        if self._lockstep:
            self._mark_noise()

    def _add(self, step: PairedStep, judged: Iterator[Judged]) -> None:
        self.numbers.append(step.number)
        for group, name, divergence in step.unlike:
            series = self._history(group, name).series
            series.first = series.first or divergence
        residuals, systematic = {}, {}
        for group, name, residual in judged:
            residuals[group, name.name] = residual
            whole, _ = step.arrays[group][name]
            factor = self._history(group, name).add(step.number, residual, whole)
            if factor is not None:
                systematic[group, name.name] = factor
        if self.evidence is not None:
            following = self.evidence.following or step.sides
            self.evidence = self.evidence._replace(following=following)
        elif any(each.series.first is not None for each in self._histories.values()):
            self.evidence = self._evidence(step.sides)
            if self._lockstep:
                self.evidence = self.evidence._replace(residuals=residuals, systematic=systematic)
        if VARIABLES in step.sides[0].values:
            # In lockstep both sides continue from side A's state.
            state = (step.sides[0], step.sides[0]) if self._lockstep else step.sides
            self._states = (state, *self._states)[:2]

    def _history(self, group: str, name: PairedName) -> ArrayHistory:
        key = group, name.name
        if key not in self._histories:
            self._histories[key] = ArrayHistory(Series(group, name.name, name.table, name.role))
        return self._histories[key]

    def _evidence(self, pair: StepPair) -> Evidence:
        a, b = self._sides
        settings = a.settings
        evidence = Evidence((settings, b.settings), self._states, pair, None)
        if not self.num_updates:
            return evidence
        position, cores = self.num_updates - 1, settings["cores"]
        batch = a.batch(position) if cores == 1 else None
        features = lookups.features_of(settings["tables"])
        ids = ids_of_step(a, position, cores, features)
        previous = ids_of_step(a, position - 1, cores, features) if position else {}
        return evidence._replace(batch=batch, position=position, ids=ids, previous_ids=previous)

    def _mark_noise(self) -> None:
        gradients = [each for (group, _), each in self._histories.items() if group == GRADIENTS]
        largest = max((each.power.largest for each in gradients), default=0.0)
        for each in gradients:
            is_small = each.power.largest <= _NOISE * largest
            each.series.is_noise = is_small and not each.series.decided


def is_more(ours: int, theirs: int) -> bool:
    """Whether `ours` exceeds `theirs` by more than chance explains if both have the same mean."""
    # Counts of rare events vary by their square roots (Poisson).
    return ours - theirs > _DEVIATIONS * math.sqrt(ours + theirs)


class Power:
    """The smallest error that the comparison would see, as a fraction of how far an array moved.

    An error is seen if an element exceeds its tolerance, or if most elements differ in the same
    direction. (Rounding goes both ways equally often.)

    Attributes:
        elementwise: the smallest error with which an element would exceed its tolerance.
        along, against: how many elements differ in the direction of their movement, and against it.
        row_factors: the smallest visible error of each row; not finite if the row never moved.
    """

    def __init__(self) -> None:
        self.elementwise = math.inf
        self.moved = False
        self.largest = 0.0
        self.along = self.against = 0
        self._bits = 0.0
        self._product = self._square = self._bias = 0.0
        self.row_factors: Array | None = None

    def add(self, allowed: Array, moved: Array) -> Array:
        distance = np.abs(moved)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            factors = np.where(distance > 0, allowed / distance, np.inf)
        # If all values are NaN, no movement is visible, and nothing can be decided.
        self.moved |= bool(((distance > 0) | np.isnan(distance)).any())
        self.largest = max(self.largest, float(np.max(distance, initial=0.0)))
        self.elementwise = min(self.elementwise, float(np.min(factors, initial=np.inf)))
        return factors

    def add_rows(self, factors: Array, rows: Array, total: int) -> None:
        if self.row_factors is None:
            self.row_factors = np.full(total, np.nan, np.float32)
        least = factors.reshape(len(factors), -1).min(1, initial=np.inf)
        self.row_factors[rows] = np.fmin(self.row_factors[rows], least)

    def add_signs(self, residual: Array, moved: Array, spacing: Array, bias: Array) -> bool:
        """Counts the differences in each direction; returns whether one direction prevails."""
        usable = (moved != 0) & np.isfinite(residual) & np.isfinite(bias)
        residual, moved = residual[usable], moved[usable]
        weights = 1 / np.square(spacing[usable])
        product = residual * moved
        along, against = np.count_nonzero(product > 0), np.count_nonzero(product < 0)
        sums = (
            float(np.sum(weights * product)),
            float(np.sum(weights * np.square(moved))),
            float(np.sum(weights * np.abs(bias[usable] * moved))),
        )
        of_step = _is_systematic(along, against, *sums)
        self.along, self.against = self.along + along, self.against + against
        self._bits += float(np.sum(np.abs(moved) * np.sqrt(weights)))
        self._product += sums[0]
        self._square += sums[1]
        self._bias += sums[2]
        return of_step or _is_systematic(
            self.along, self.against, self._product, self._square, self._bias
        )

    @property
    def factor(self) -> float:
        return self._product / self._square if self._square else 0.0

    @property
    def visible(self) -> float:
        if not self._bits:
            return self.elementwise
        honest = self.along + self.against
        needed = SIGNIFICANT * (SIGNIFICANT + math.sqrt(SIGNIFICANT**2 + 4 * honest)) / 2
        counted = max(needed / self._bits, SMALLEST_FACTOR, self._bias / self._square)
        # Counting finds differences of single bits, so the elements must move by several bits.
        return min(self.elementwise, counted)


def _is_systematic(along: int, against: int, product: float, square: float, bias: float) -> bool:
    total = along + against
    if not total or abs(along - against) < SIGNIFICANT * math.sqrt(total) or not square:
        return False
    return abs(product) > max(SMALLEST_FACTOR * square, bias)
