"""Compares the steps of two recordings, array by array."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from estimator_bridge.progress_line import Progress
from estimator_bridge.verify import findings
from estimator_bridge.verify.evidence import Evidence, StepPair
from estimator_bridge.verify.findings import Divergence, Point, Series
from estimator_bridge.verify.judge import elements
from estimator_bridge.verify.judge.tolerance import ArrayPair, PairedName, Tolerance
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.record.recording import Recording, Step, TableDescription, Values
from tf2_engine.types import Array, Object

# No part of a model: stock's stand-ins for tables, which hold nothing, and what a hook counts.
_OUTSIDE = ("tpu_embedding_dummy_table_variable_", "signal_early_stopping/")


class StepComparison:
    """The series of all arrays, as they grow step by step.

    Attributes:
        series: by group and name.
        steps: the global steps that were compared, the start first.
        remarks: what besides the arrays keeps the sides from being equal.
        tolerance: of the arrays, after the last step.
        evidence: of the first divergence, or None.
        only: the arrays, by group and name, that one side alone has.
    """

    def __init__(self, a: Recording, b: Recording, tolerance: Tolerance) -> None:
        self.series: dict[tuple[str, str], Series] = {}
        self.steps: list[int] = []
        self.remarks: list[str] = []
        self.evidence: Evidence | None = None
        self._sides = a, b
        self._settings = a.settings, b.settings
        self.tolerance = tolerance
        self._pairing = _Pairing(*(side["tables"] for side in self._settings))
        self.only = self._pairing.only

    @property
    def num_updates(self) -> int:
        """How many steps were made since the start."""
        return self.steps[-1] - self.steps[0] if self.steps else 0

    def run(self, progress: Progress) -> None:
        """Compares all steps."""
        a, b = self._sides
        total = len(a.numbers())
        states: tuple[StepPair, ...] = ()
        for step_a, step_b in itertools.zip_longest(a.steps(), b.steps()):
            progress("comparing", len(self.steps), total)
            if step_a is None or step_b is None:
                self.remarks.append(f"side {'B' if step_a is None else 'A'} made more steps")
                break
            if self._settings[1]["engine"] == recording.CHECKPOINT:
                # A checkpoint has the variables of the last step alone, and nothing before it.
                groups = {group: step_a.values[group] for group in step_b.values}
                self._compare((Step(step_a.number, groups), step_b))
            elif self._compare((step_a, step_b)) and self.evidence is None:
                self.evidence = self._evidence(states, (step_a, step_b))
            if recording.VARIABLES in step_a.values:
                states = ((step_a, step_b), *states)[:2]
        self.remarks.extend(self.tolerance.remarks)
        progress("comparing", total, total)

    def _evidence(self, states: tuple[StepPair, ...], pair: StepPair) -> Evidence:
        known = self.num_updates and self._settings[0]["cores"] == 1
        batch = self._sides[0].batch(self.num_updates - 1) if known else None
        return Evidence(self._settings, states, pair, batch)

    def _compare(self, pair: StepPair) -> bool:
        """Adds a step to the series; returns whether anything diverged in it."""
        a, b = pair
        self.steps.append(a.number)
        diverged = False
        for group in sorted({*a.values, *b.values}):
            pairs = self._pairing.paired(group, a.values.get(group, {}), b.values.get(group, {}))
            bounds = self.tolerance.of_step(group, a.number, self.num_updates, pairs)
            for name, arrays in pairs.items():
                diverged |= self._add(group, name, arrays, bounds[name])
        return diverged

    def _add(self, group: str, name: PairedName, arrays: ArrayPair, bound: float) -> bool:
        """Adds a point to the series of an array; returns whether it diverges."""
        series = self.series.setdefault(
            (group, name.name), Series(group, name.name, name.table, name.role)
        )
        a, b = arrays
        number = self.steps[-1]
        if a.shape != b.shape or a.dtype != b.dtype:
            kinds = [f"{elements.type_name(one)} {list(one.shape)}" for one in arrays]
            series.first = series.first or Divergence(number, None, None, kinds[0], kinds[1], 0)
            return True
        point, index = measure(number, a, b, bound)
        series.points.append(point)
        if point.equal:
            return False
        series.first = series.first or _divergence(a, b, point, index)
        return True


class _Pairing:
    """Pairs arrays by the tables of both sides; `only` are those that one side alone has."""

    def __init__(self, a: Sequence[TableDescription], b: Sequence[TableDescription]) -> None:
        self.only: tuple[set[str], set[str]] = (set(), set())
        self._parts = [_parts_of_tables(tables) for tables in (a, b)]
        self._table_of_feature = {key: table["name"] for table in a for key in table["features"]}

    def paired(self, group: str, a: Values, b: Values) -> dict[PairedName, ArrayPair]:
        """Returns the arrays that both sides have; the names of the others go into `only`."""
        names_a, names_b = self._names(group, 0, a), self._names(group, 1, b)
        self.only[0].update(f"{group} {names_a[key]}" for key in names_a.keys() - names_b.keys())
        self.only[1].update(f"{group} {names_b[key]}" for key in names_b.keys() - names_a.keys())
        return {
            self._paired_name(group, name): (a[name], b[names_b[key]])
            for key, name in names_a.items()
            if key in names_b
        }

    def _names(self, group: str, side: int, values: Values) -> dict[Object, str]:
        """Returns the names on a side by keys that are the same on both."""
        # A slot has other names where a model's own optimizer made it.
        parts = self._parts[side] if group == recording.VARIABLES else {}
        return {
            parts.get(name, name): name
            for name in values
            if not any(outside in name for outside in _OUTSIDE)
        }

    def _paired_name(self, group: str, name: str) -> PairedName:
        if group == recording.VARIABLES:
            if name not in self._parts[0]:
                # Variables of a network share a scale: weights, or slots of one name.
                last = name.rpartition("/")[2]
                scale = f"slot {last}" if last[:1].isupper() else findings.DENSE
                return PairedName(name, None, findings.DENSE, scale)
            table, slot = self._parts[0][name]
            return PairedName(
                name, table, findings.TABLE if slot is None else f"{findings.SLOT} {slot}", name
            )
        feature = name.partition(" (core ")[0]
        roles = {recording.ACTIVATIONS: findings.ACTIVATION, recording.GRADIENTS: findings.GRADIENT}
        role = roles.get(group, group)
        scale = "" if role == findings.GRADIENT else name
        return PairedName(name, self._table_of_feature.get(feature), role, scale)


def _parts_of_tables(tables: Sequence[TableDescription]) -> dict[str, tuple[str, str | None]]:
    """Returns the table and the slot of each variable; the slot of the rows is None."""
    parts: dict[str, tuple[str, str | None]] = {}
    for table in tables:
        parts[table["variable"]] = table["name"], None
        parts.update({name: (table["name"], slot) for name, slot in table["slots"].items()})
    return parts


def measure(step: int, a: Array, b: Array, bound: float) -> tuple[Point, tuple[int, ...]]:
    """Returns the difference of two arrays of one shape, and the index where it is largest.

    Two NaNs are equal; a NaN and a number are infinitely far apart.

    Args:
        bound: the tolerance of floats; other numbers and strings must be equal.
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


def _divergence(a: Array, b: Array, point: Point, index: tuple[int, ...]) -> Divergence:
    """Returns where two arrays of one shape differ by more than the tolerance."""
    differs = elements.differences(a, b) > point.allowed
    rows = int(np.count_nonzero(differs.reshape(len(differs), -1).any(1))) if differs.ndim else 1
    row, element = (index[0] if index else None), (list(index[1:]) or None)
    values = elements.shown(a[index]), elements.shown(b[index])
    return Divergence(point.step, row, element, *values, rows)
