"""Compares two recordings in lockstep: side B starts every step from side A's state.

So each step is judged by itself, and the rounding errors of earlier steps do not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from estimator_bridge.verify.compare import elements, scope
from estimator_bridge.verify.compare.arithmetic import bias_correction, lookups
from estimator_bridge.verify.compare.arithmetic.lookups import RecordedIds
from estimator_bridge.verify.compare.arithmetic.rounded import SMALLEST_NORMAL
from estimator_bridge.verify.compare.arithmetic.shadow import ShadowInputs
from estimator_bridge.verify.compare.joined_cores import Ids, ids_of_step, joined_step
from estimator_bridge.verify.compare.network_rounding import Network
from estimator_bridge.verify.compare.pairing import ArrayPair, PairedName
from estimator_bridge.verify.compare.power import Power
from estimator_bridge.verify.compare.residual import apart, point_of, spacing
from estimator_bridge.verify.compare.steps import StepComparison
from estimator_bridge.verify.compare.table_updates import TableUpdates, same_arrays
from estimator_bridge.verify.compare.tolerance import Tolerance
from estimator_bridge.verify.evidence import Residual, StepPair
from estimator_bridge.verify.findings import TABLE, Divergence
from estimator_bridge.verify.record.recording import (
    ACTIVATIONS,
    GRADIENTS,
    SUMMED_ROWS,
    VARIABLES,
    Recording,
    Step,
    Values,
    read_arrays,
)
from tf2_engine.types import Array

_ROUNDINGS_OF_START = 4
"""Roundings (two units in the last place) by which initial values may differ."""
_NOISE = 1e-4
"""A gradient that is this small beside the largest one of the model may be rounding errors only.

For example, the gradient of a bias that feeds a batch norm is zero apart from rounding.
"""
_DEVIATIONS = 4.5
"""Standard deviations between two counts of jumps that are not chance (one in 300,000 arrays)."""


class LockstepComparison(StepComparison):
    """The series of all arrays of two sides in lockstep.

    Args:
        perturbed_run: side A with its last bits changed; None if nothing was measured.
    """

    def __init__(self, a: Recording, b: Recording, perturbed_run: Recording | None) -> None:
        super().__init__(a, b, Tolerance(1, {}))
        self._perturbed = perturbed_run
        self._features = lookups.features_of(self._settings[0]["tables"])
        self._network = Network(a, perturbed_run, _samples(a), {*self._features})
        self._powers: dict[tuple[str, str], Power] = {}
        self._first_jumps: dict[str, int] = {}
        # The inputs of the steps since the last read of the variables, on each side.
        self._inputs: tuple[list[ShadowInputs], list[ShadowInputs]] | None = ([], [])
        self._before: Values | None = None
        self._tables: dict[str, TableUpdates] | None = None
        steps_p = () if perturbed_run is None else perturbed_run.steps()
        self._steps_p: Iterator[Step] = map(joined_step, steps_p)
        self._p: dict[str, Values] = {}

    def _state_of(self, pair: StepPair) -> StepPair:
        return pair[0], pair[0]

    def compare_pair(self, pair: StepPair) -> None:
        a, b = pair
        self.steps.append(a.number)
        self._p = next(self._steps_p, Step(a.number, {})).values
        self._residuals, self._systematic = {}, {}
        position, cores = len(self.steps) - 2, self._settings[0]["cores"]
        ids: Ids = {}
        if position >= 0:
            ids = ids_of_step(self._sides[0], position, cores, self._features)
        for group in sorted({*a.values, *b.values} - {VARIABLES}):
            for name, one, other in self._alike(group, self._paired(group, pair)):
                if not name.name.endswith(SUMMED_ROWS):
                    residual = self._computed(group, name, one, other, ids)
                    self._add_residual(group, name, residual)
        self._remember_inputs(pair, ids)
        if VARIABLES in a.values or VARIABLES in b.values:
            self._compare_variables(pair)
            self._before = a.values.get(VARIABLES)
            self._inputs = ([], [])

    def finish(self) -> None:
        for name, (ours, theirs) in self._network.jumps.items():
            series = self.series[GRADIENTS, name]
            if is_more(ours, theirs) and series.first is None:
                note = (
                    f"{ours} samples differ by more than rounding moves the others, and {theirs} "
                    "of the perturbed run"
                )
                step = self._first_jumps[name]
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

    def _computed(self, group: str, name: PairedName, a: Array, b: Array, ids: Ids) -> Residual:
        p = self._p.get(group, {}).get(name.name)
        rounding: Array | float = 0.0
        if group == ACTIVATIONS and a.dtype == np.float32:
            looked_up = self._looked_up(name, a, b, ids.get(name.name))
            if isinstance(looked_up, Residual):
                return looked_up
            rounding = looked_up
        return self._network.computed(group, name.name, a, b, p, rounding)

    def _looked_up(
        self, name: PairedName, a: Array, b: Array, ids: RecordedIds | None
    ) -> Residual | Array | float:
        tables = self._settings[0]["tables"]
        table = next((each for each in tables if each["name"] == name.table), None)
        if table is None or ids is None or self._before is None:
            return 0.0
        feature, rows = self._features[name.name], self._before.get(table["variable"])
        if rows is None or not ids.are_rows_of(rows):
            return 0.0
        shadow = lookups.look_up_rounded(rows, ids, feature.combiner)
        if shadow.value.shape != a.shape:
            return 0.0
        allowed = 2 * shadow.error + SMALLEST_NORMAL
        is_first = self._inputs is not None and not self._inputs[0]
        described = any(np.all(np.abs(x - shadow.value) <= allowed) for x in (a, b))
        if is_first and described:
            return Residual(a, b, apart(a, b), allowed, a.astype(np.float64))
        return allowed

    def _remember_inputs(self, pair: StepPair, ids: Ids) -> None:
        """Keeps the inputs of a step's updates; if they are unknown, none until the next read."""
        if len(self.steps) == 1:
            return
        known = {key: each for key, each in ids.items() if each is not None}
        if self._inputs is None or known.keys() != self._features.keys():
            self._inputs = None
            return
        position = len(self.steps) - 2
        for inputs, step in zip(self._inputs, pair, strict=True):
            gradients = step.values.get(GRADIENTS, {})
            mine = {key: gradients[key] for key in known if key in gradients}
            inputs.append(ShadowInputs(position, known, mine))

    def _compare_variables(self, pair: StepPair) -> None:
        a, b = (step.values.get(VARIABLES, {}) for step in pair)
        pairs = self._paired(VARIABLES, pair)
        judged: set[PairedName] = set()
        before = self._before
        if before is not None and self._inputs is not None:
            for name, residual in self._of_tables(pairs, before, (a, b)):
                judged.add(name)
                self._add_residual(VARIABLES, name, residual)
        same = same_arrays(*(step.values.get(GRADIENTS, {}) for step in pair))
        rest = {name: arrays for name, arrays in pairs.items() if name not in judged}
        for name, one, other in self._alike(VARIABLES, rest):
            start = None if before is None else before.get(name.name)
            residual = _of_start(one, other)
            if start is not None:
                p = self._p.get(VARIABLES, {}).get(name.name)
                residual = self._network.updated(
                    *(name.name, start, one, other, p),
                    same=same,
                    relative=self._relative(name.name),
                )
            self._add_residual(VARIABLES, name, residual)

    def _relative(self, name: str) -> float:
        names = scope.computed(*self._settings)
        return bias_correction.relative_error(name, self._before or {}, names, self.steps[-1])

    def _of_tables(
        self, pairs: Mapping[PairedName, ArrayPair], before: Values, after: tuple[Values, Values]
    ) -> Iterator[tuple[PairedName, Residual]]:
        names = {name.name: name for name in pairs}
        if self._tables is None:
            self._tables = {
                table["name"]: TableUpdates(table, {n: name.name_b for n, name in names.items()})
                for table in self._settings[0]["tables"]
                if table.get("rule") is not None
                and {table["variable"], *table["slots"]} <= {*names}
            }
        assert self._inputs is not None
        for updates in self._tables.values():
            ours, theirs = (
                [_of_table(step, {*updates.features}) for step in steps] for steps in self._inputs
            )
            rows = before[updates.variable]
            if all(step.fits(rows) for step in (*ours, *theirs)):
                for name, residual in updates.residuals(before, after, (ours, theirs)):
                    yield names[name], residual

    def _add_residual(self, group: str, name: PairedName, residual: Residual) -> None:
        series, key = self._series_of(group, name), (group, name.name)
        power = self._powers.setdefault(key, Power())
        number = self.steps[-1]
        self._residuals[key] = residual
        point, divergence = point_of(number, residual)
        series.points.append(point)
        allowed = np.broadcast_to(residual.allowed, residual.apart.shape)
        factors = power.add(allowed, residual.moved)
        if residual.rows is not None and name.role == TABLE and len(residual.rows):
            assert self._before is not None
            power.add_rows(factors, residual.rows, len(self._before[name.name]))
        if residual.bias is not None and divergence is None:
            gaps = spacing(residual.a)
            if power.add_signs(residual.apart, residual.moved, gaps, residual.bias):
                note = (
                    f"side B moves {1 + power.factor:.6g} times as far: {power.along} elements "
                    f"differ along the movement, and {power.against} against it"
                )
                divergence = Divergence(number, None, None, "", "", 0, note=note)
                self._systematic[key] = power.factor
                series.points[-1] = point._replace(systematic=True)
        if group == GRADIENTS and self._network.jumps.get(name.name, (0, 0))[0]:
            self._first_jumps.setdefault(name.name, number)
        if divergence is not None:
            series.first = series.first or divergence
            self._diverged = True


def is_more(ours: int, theirs: int) -> bool:
    """Whether one of two counts is larger than chance allows, if both have the same mean.

    Counts of rare events vary by their square roots (Poisson), and here both vary: twenty against
    none is as likely as a coin that falls on the same side twenty times.
    """
    return ours - theirs > _DEVIATIONS * math.sqrt(ours + theirs)


def _of_start(a: Array, b: Array) -> Residual:
    allowed = np.zeros(a.shape)
    if elements.is_float(a.dtype):
        size = np.abs(np.nan_to_num(elements.wide(a)))
        allowed = _ROUNDINGS_OF_START * elements.unit_roundoff(a.dtype) * size
    return Residual(a, b, apart(a, b), allowed, np.zeros(a.shape))


def _of_table(step: ShadowInputs, features: set[str]) -> ShadowInputs:
    return ShadowInputs(
        step.position,
        {key: ids for key, ids in step.ids.items() if key in features},
        {key: gradient for key, gradient in step.gradients.items() if key in features},
    )


def _samples(a: Recording) -> int:
    sizes = []
    for path in a.batches()[:1]:
        for name, array in read_arrays(path).items():
            if name.endswith(".shape"):
                sizes.append(int(array[0]) if array.size else 0)
            elif not name.endswith((".indices", ".values")) and array.ndim:
                sizes.append(len(array))
    return max(sizes, default=1)
