"""Compares two recordings in lockstep: side B starts every step from side A's state.

So each step is judged by itself, and the rounding errors of earlier steps do not count.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    SUMMED_ROWS,
    VARIABLES,
    Recording,
    SideDescription,
    Step,
    Values,
    read_arrays,
)
from estimator_bridge.verification.compare import elements, scope
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.arithmetic.rounded import SMALLEST_NORMAL
from estimator_bridge.verification.compare.arithmetic.shadow import ShadowInputs
from estimator_bridge.verification.compare.elements import apart, point_of, spacing
from estimator_bridge.verification.compare.joined_cores import Ids, ids_of_step, joined_step
from estimator_bridge.verification.compare.network_rounding import Network, relative_error
from estimator_bridge.verification.compare.pairing import ArrayPair, PairedName
from estimator_bridge.verification.compare.power import Power
from estimator_bridge.verification.compare.steps import Judged, StepComparison
from estimator_bridge.verification.compare.table_updates import same_arrays, table_residuals
from estimator_bridge.verification.compare.tolerance import Tolerance
from estimator_bridge.verification.evidence import Residual, StepPair
from estimator_bridge.verification.findings import TABLE, Divergence
from tf2_engine.types import Array

_ROUNDINGS_OF_START = 4
"""Roundings (two units in the last place) by which initial values may differ."""
_NOISE = 1e-4
"""A gradient that is this small beside the largest one of the model may be rounding errors only.

For example, the gradient of a bias that feeds a batch norm is zero apart from rounding.
"""
_DEVIATIONS = 4.5
"""Standard deviations between two counts of jumps that are not chance (one in 300,000 arrays)."""

Inputs = tuple[Sequence[ShadowInputs], Sequence[ShadowInputs]]
"""The inputs of the updates of both sides, step by step."""


class LockstepStep(NamedTuple):
    """Everything from which one step is judged.

    Attributes:
        after: both sides after the step.
        pairs: by group, the arrays of equal type and shape on both sides.
        perturbed: the arrays of the perturbed run by group.
        before: side A's variables at the last read, from which both sides continued.
        inputs: of the steps since that read, including this one; None if unknown.
        is_first: whether the step is the first one since that read.
    """

    number: int
    after: StepPair
    pairs: Mapping[str, Mapping[PairedName, ArrayPair]]
    perturbed: Mapping[str, Values]
    ids: Ids
    before: Values | None
    inputs: Inputs | None
    is_first: bool

    @property
    def next_before(self) -> Values | None:
        return self.after[0].values.get(VARIABLES) if self._is_read else self.before

    @property
    def next_inputs(self) -> Inputs | None:
        return ([], []) if self._is_read else self.inputs

    @property
    def _is_read(self) -> bool:
        return any(VARIABLES in step.values for step in self.after)


class LockstepComparison(StepComparison):
    """The series of all arrays in lockstep; without a perturbed run nothing is measured."""

    def __init__(self, a: Recording, b: Recording, perturbed_run: Recording | None) -> None:
        super().__init__(a, b, Tolerance(1, {}))
        self._features = lookups.features_of(self._settings[0]["tables"])
        network = Network(a, perturbed_run, _samples(a), {*self._features})
        self._judge = _StepJudge(self._settings, self._features, network)
        perturbed = () if perturbed_run is None else perturbed_run.steps()
        self._perturbed: Iterator[Step] = map(joined_step, perturbed)
        self._last: LockstepStep | None = None
        self._powers: dict[tuple[str, str], Power] = {}
        self._jumps: dict[str, list[tuple[int, int, int]]] = {}

    def _state_of(self, pair: StepPair) -> StepPair:
        """Both sides continue from side A's state."""
        return pair[0], pair[0]

    def compare_pair(self, pair: StepPair) -> Judged:
        self._last = step = self._step(pair)
        judged = Judged({}, {})
        for group, name, residual in self._judge.residuals(step):
            judged.residuals[group, name.name] = residual
            factor = self._add(step, group, name, residual)
            if factor is not None:
                judged.systematic[group, name.name] = factor
        return judged

    def _step(self, pair: StepPair) -> LockstepStep:
        a, b = pair
        last, position = self._last, len(self.steps) - 2
        ids: Ids = {}
        if last is not None:
            ids = ids_of_step(self._sides[0], position, self._settings[0]["cores"], self._features)
        earlier = ([], []) if last is None else last.next_inputs
        groups = sorted({*a.values, *b.values})
        return LockstepStep(
            number=a.number,
            after=pair,
            pairs={group: self._alike(group, pair) for group in groups},
            perturbed=next(self._perturbed, Step(a.number, {})).values,
            ids=ids,
            before=None if last is None else last.next_before,
            inputs=earlier if last is None else self._inputs(earlier, pair, ids, position),
            is_first=earlier is not None and not earlier[0],
        )

    def _inputs(
        self, earlier: Inputs | None, pair: StepPair, ids: Ids, position: int
    ) -> Inputs | None:
        """Adds the inputs of a step; if they are unknown, none are known until the next read."""
        known = {key: each for key, each in ids.items() if each is not None}
        if earlier is None or known.keys() != self._features.keys():
            return None
        ours, theirs = (
            [*inputs, ShadowInputs(position, known, step.values.get(GRADIENTS, {}))]
            for inputs, step in zip(earlier, pair, strict=True)
        )
        return ours, theirs

    def finish(self) -> None:
        for name, counts in self._jumps.items():
            ours, theirs = (sum(one[side] for one in counts) for side in (1, 2))
            series = self.series.get((GRADIENTS, name))
            if series is not None and is_more(ours, theirs) and series.first is None:
                note = (
                    f"{ours} samples differ by more than rounding moves the others, and {theirs} "
                    "of the perturbed run"
                )
                step = next(number for number, ours, _ in counts if ours)
                series.first = Divergence(step, None, None, "", "", ours, note=note)
        of_gradients = (power.largest for key, power in self._powers.items() if key[0] == GRADIENTS)
        largest = max(of_gradients, default=0.0)
        for key, power in self._powers.items():
            series = self.series[key]
            series.visible, series.moved = power.visible, power.moved
            series.rows_decided, series.rows_moved = power.rows
            series.undecided_row = power.undecided_row
            is_noise = key[0] == GRADIENTS and power.largest <= _NOISE * largest
            series.is_noise = is_noise and not series.decided

    def _add(
        self, step: LockstepStep, group: str, name: PairedName, residual: Residual
    ) -> float | None:
        """Adds a point to the series of an array; returns the factor of a systematic error."""
        series = self._series_of(group, name)
        power = self._powers.setdefault((group, name.name), Power())
        point, divergence = point_of(step.number, residual)
        allowed = np.broadcast_to(residual.allowed, residual.apart.shape)
        factors = power.add(allowed, residual.moved)
        if residual.rows is not None and name.role == TABLE and len(residual.rows):
            assert step.before is not None
            power.add_rows(factors, residual.rows, len(step.before[name.name]))
        systematic = None
        if residual.bias is not None and divergence is None:
            gaps = spacing(residual.a)
            if power.add_signs(residual.apart, residual.moved, gaps, residual.bias):
                systematic = power.factor
                note = (
                    f"side B moves {1 + systematic:.6g} times as far: {power.along} elements "
                    f"differ along the movement, and {power.against} against it"
                )
                divergence = Divergence(step.number, None, None, "", "", 0, note=note)
                point = point._replace(systematic=True)
        if residual.jumps is not None:
            self._jumps.setdefault(name.name, []).append((step.number, *residual.jumps))
        series.points.append(point)
        series.first = series.first or divergence
        return systematic


@dataclasses.dataclass(frozen=True)
class _StepJudge:
    """Judges one step by nothing but the values of that step."""

    settings: tuple[SideDescription, SideDescription]
    features: Mapping[str, lookups.Feature]
    network: Network

    def residuals(self, step: LockstepStep) -> Iterator[tuple[str, PairedName, Residual]]:
        for group in sorted(step.pairs.keys() - {VARIABLES}):
            for name, (a, b) in step.pairs[group].items():
                if not name.name.endswith(SUMMED_ROWS):
                    yield group, name, self._computed(step, group, name, a, b)
        of_tables = dict(self._of_tables(step))
        rest = self._of_rest(step, of_tables.keys())
        for name, residual in itertools.chain(of_tables.items(), rest):
            yield VARIABLES, name, residual

    def _computed(
        self, step: LockstepStep, group: str, name: PairedName, a: Array, b: Array
    ) -> Residual:
        rounding: Array | float = 0.0
        if group == ACTIVATIONS and a.dtype == np.float32:
            looked_up = self._looked_up(step, name, a, b)
            if isinstance(looked_up, Residual):
                return looked_up
            rounding = looked_up
        p = step.perturbed.get(group, {}).get(name.name)
        return self.network.computed(group, name.name, a, b, p, rounding)

    def _looked_up(
        self, step: LockstepStep, name: PairedName, a: Array, b: Array
    ) -> Residual | Array | float:
        """Returns the residual of an activation, or else the possible error of its sums."""
        tables = self.settings[0]["tables"]
        table = next((each for each in tables if each["name"] == name.table), None)
        ids = step.ids.get(name.name)
        if table is None or ids is None or step.before is None:
            return 0.0
        rows = step.before.get(table["variable"])
        if rows is None or not ids.are_rows_of(rows):
            return 0.0
        shadow = lookups.look_up_rounded(rows, ids, self.features[name.name].combiner)
        if shadow.value.shape != a.shape:
            return 0.0
        allowed = 2 * shadow.error + SMALLEST_NORMAL
        described = any(np.all(np.abs(x - shadow.value) <= allowed) for x in (a, b))
        if step.is_first and described:
            return Residual(a, b, apart(a, b), allowed, a.astype(np.float64))
        return allowed

    def _of_tables(self, step: LockstepStep) -> Iterator[tuple[PairedName, Residual]]:
        names = {name.name: name for name in step.pairs.get(VARIABLES, {})}
        if step.before is None or step.inputs is None:
            return
        a, b = (side.values.get(VARIABLES, {}) for side in step.after)
        for table in self.settings[0]["tables"]:
            if table.get("rule") is None or not {table["variable"], *table["slots"]} <= {*names}:
                continue
            names_b = {name: both.name_b for name, both in names.items()}
            residuals = table_residuals(table, names_b, step.before, (a, b), step.inputs)
            for name, residual in residuals:
                yield names[name], residual

    def _of_rest(
        self, step: LockstepStep, judged: Collection[PairedName]
    ) -> Iterator[tuple[PairedName, Residual]]:
        same = same_arrays(*(side.values.get(GRADIENTS, {}) for side in step.after))
        before = step.before or {}
        computed = scope.computed(*self.settings)
        for name, (a, b) in step.pairs.get(VARIABLES, {}).items():
            if name in judged:
                continue
            start, p = before.get(name.name), step.perturbed.get(VARIABLES, {}).get(name.name)
            if start is None:
                yield name, _of_start(a, b)
                continue
            relative = relative_error(name.name, before, computed, step.number)
            yield (
                name,
                self.network.updated(name.name, start, a, b, p, same=same, relative=relative),
            )


def is_more(ours: int, theirs: int) -> bool:
    """Whether one of two counts is larger than chance allows, if both have the same mean.

    Counts of rare events vary by their square roots (Poisson), and here both vary.
    """
    return ours - theirs > _DEVIATIONS * math.sqrt(ours + theirs)


def _of_start(a: Array, b: Array) -> Residual:
    allowed = np.zeros(a.shape)
    if elements.is_float(a.dtype):
        size = np.abs(np.nan_to_num(elements.wide(a)))
        allowed = _ROUNDINGS_OF_START * elements.unit_roundoff(a.dtype) * size
    return Residual(a, b, apart(a, b), allowed, np.zeros(a.shape))


def _samples(a: Recording) -> int:
    sizes = []
    for path in a.batches()[:1]:
        for name, array in read_arrays(path).items():
            if name.endswith(".shape"):
                sizes.append(int(array[0]) if array.size else 0)
            elif not name.endswith((".indices", ".values")) and array.ndim:
                sizes.append(len(array))
    return max(sizes, default=1)
