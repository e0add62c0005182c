"""Checks the invariants of a job, such as finite values, valid ids, correct lookups and updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    VARIABLES,
    RecordedStep,
    TableDescription,
    Values,
)
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.arithmetic.lookups import RecordedIds
from estimator_bridge.verification.compare.arithmetic.rounded import Rounded
from estimator_bridge.verification.compare.arithmetic.update_rules import ShadowInputs, TableShadow
from estimator_bridge.verification.compare.elements import unequal_rows
from estimator_bridge.verification.compare.paired_steps import IdsOfFeatures
from tf2_engine.types import Array

FINITE, STEP, IDS, LOOKUP = "finite", "global step", "ids", "lookup"
ROWS, MONOTONE, SIGN, LIMITS = "rows of the batch", "monotone slot", "sign of slot", "limits"
UPDATE, RATE = "update", "learning rate"
INVARIANTS = {
    FINITE: "no variable, activation, gradient or loss is NaN or infinite",
    STEP: "the global step counts every step once",
    IDS: "ids are rows of their table, have one weight each, and lie within the batch",
    LOOKUP: "activations follow from the rows before the step, the ids and the weights",
    ROWS: "only rows of the batch move, unless the rule says otherwise",
    MONOTONE: "slots that add up squares never become smaller",
    SIGN: "slots that hold squares are never negative",
    LIMITS: "rows that move stay within the weight limits",
    UPDATE: "rows and slots follow from the rule and the recorded gradients",
    RATE: "rows move as far as the learning rate of the step says",
}

_GLOBAL_STEP = "global_step"
_KINDS = {"variables": "variable", "activations": "activation of feature", "loss": "the"}
# Slots that add up squares and never forget them, keyed by the optimizer's class in the engine.
_MONOTONE = dict.fromkeys(
    ("Adagrad", "ProximalAdagrad", "FTRL", "AdagradMomentum"), ("accumulators",)
)
_NOT_NEGATIVE = {
    "Adam": ("velocities",),
    "RMSProp": ("ms",),
    "CenteredRMSProp": ("ms",),
    "Adadelta": ("accumulators", "updates"),
}
_MEANS_OF_ROWS = ("FrequencyEstimator",)
"""With these optimizers, an activation is not the row, but is computed from the row."""


class Violation(NamedTuple):
    """An invariant, named as in `INVARIANTS`, that does not hold after a step."""

    step: int
    invariant: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.where}: {self.text} ({self.invariant})"


@dataclasses.dataclass(frozen=True)
class Interval:
    """The steps between two reads of the variables, usually one."""

    position: int
    before: Values
    steps: list[RecordedStep]
    ids: list[IdsOfFeatures]

    @property
    def after(self) -> Values:
        return self.steps[-1].values[VARIABLES]

    @property
    def number(self) -> int:
        return self.steps[-1].number

    def inputs(self, table: TableDescription) -> list[ShadowInputs] | None:
        inputs = []
        for offset, step in enumerate(self.steps):
            ids = self.ids_of(table, offset)
            if len(ids) < len(table["features"]):
                return None
            gradients = step.values.get(GRADIENTS, {})
            inputs.append(ShadowInputs(self.position + offset, ids, gradients))
        return inputs

    def ids_of(self, table: TableDescription, step: int) -> dict[str, RecordedIds]:
        ids_of_features = {key: self.ids[step].get(key) for key in table["features"]}
        return {key: ids for key, ids in ids_of_features.items() if ids is not None}


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


class _Beyond(NamedTuple):
    row: int
    element: int
    rows: int
    text: str


def check_ids(interval: Interval, table: TableDescription) -> Iterator[Violation]:
    rows = len(interval.before[table["variable"]])
    for position, step in enumerate(interval.steps):
        for key, occurrences in interval.ids_of(table, position).items():
            for text in _wrong_ids(occurrences, rows, table["name"]):
                yield Violation(step.number, IDS, f"feature {key}", text)


def _wrong_ids(occurrences: RecordedIds, rows: int, table: str) -> Iterator[str]:
    cells, ids, weights, shape = occurrences
    outside = (ids < 0) | (ids >= rows)
    if outside.any():
        first = int(np.flatnonzero(outside)[0])
        yield (
            f"id {ids[first]} is not a row of table {table}, which has {rows} rows; "
            f"{int(np.count_nonzero(outside))} of {len(outside)} ids are wrong"
        )
    if len(weights) != len(ids):
        yield f"{len(ids)} ids have {len(weights)} weights"
    elif not np.isfinite(weights).all():
        yield "a weight is not finite"
    if len(cells) and not 0 <= cells.min() <= cells.max() < np.prod(shape):
        yield f"an id lies outside of the batch's shape {shape}"


def check_lookups(interval: Interval, table: TableDescription) -> Iterator[Violation]:
    rule = table["rule"]
    if rule is None or rule["kind"] in _MEANS_OF_ROWS:
        return
    first, rows = interval.steps[0], interval.before[table["variable"]]
    for key, occurrences in interval.ids_of(table, 0).items():
        activation = first.values.get(ACTIVATIONS, {}).get(key)
        combiner = None if len(occurrences.shape) > 1 else table["combiner"]
        if activation is None or not occurrences.are_rows_of(rows):
            continue
        expected = lookups.look_up_rounded(rows, occurrences, combiner)
        if activation.shape != expected.value.shape:
            text = f"its shape is {activation.shape}, not {expected.value.shape}"
            yield Violation(first.number, LOOKUP, f"feature {key}", text)
            continue
        flat = -1, activation.shape[-1]
        beyond = _beyond(activation.reshape(flat), expected.reshaped(*flat))
        if beyond is not None:
            text = (
                f"activation {beyond.row}, element {beyond.element} is {beyond.text}, the value "
                f"from the rows of table {table['name']}; {beyond.rows} activations are wrong"
            )
            yield Violation(first.number, LOOKUP, f"feature {key}", text)


def check_untouched(
    interval: Interval, table: TableDescription, inputs: list[ShadowInputs]
) -> Iterator[Violation]:
    rule = table["rule"]
    if rule is None or not rule["settings"].get("lazy_adam", True):
        return
    untouched = np.ones(len(interval.before[table["variable"]]), bool)
    for step in inputs:
        for occurrences in step.ids.values():
            untouched[occurrences.ids] = False
    for name, where in _parts(table).items():
        moved = unequal_rows(interval.before[name], interval.after[name])
        (rows,) = np.nonzero(moved & untouched)
        if len(rows):
            row = int(rows[0])
            text = f"row {row} moves, but is in no batch of the step; {len(rows)} such rows move"
            yield Violation(interval.number, ROWS, where, text)


def check_slots(interval: Interval, table: TableDescription) -> Iterator[Violation]:
    rule = table["rule"]
    if rule is None:
        return
    never_forgets = rule["settings"].get("beta2", 1.0) == 1.0
    monotone = _MONOTONE.get(rule["kind"], ()) if never_forgets else ()
    for name, slot in table["slots"].items():
        before, after = interval.before[name], interval.after[name]
        where = f"slot {slot} of table {table['name']}"
        for row, element in np.argwhere(after < before)[:1] if slot in monotone else ():
            text = (
                f"row {row}, element {element} falls from {before[row, element]:.9g} to "
                f"{after[row, element]:.9g}"
            )
            yield Violation(interval.number, MONOTONE, where, text)
        if slot in monotone or slot in _NOT_NEGATIVE.get(rule["kind"], ()):
            for row, element in np.argwhere((after < 0) & (before >= 0))[:1]:
                text = f"row {row}, element {element} is {after[row, element]:.9g}"
                yield Violation(interval.number, SIGN, where, text)


def check_limits(interval: Interval, table: TableDescription) -> Iterator[Violation]:
    settings = table["rule"]["settings"] if table["rule"] else {}
    low, high = (settings.get(f"clip_weight_{end}") for end in ("min", "max"))
    if low is None and high is None:
        return
    before, after = (values[table["variable"]] for values in (interval.before, interval.after))
    moved = (before != after).any(1)
    outside = np.zeros(after.shape, bool)
    if low is not None:
        outside |= after < np.float32(low)
    if high is not None:
        outside |= after > np.float32(high)
    for row, element in np.argwhere(outside & moved[:, np.newaxis])[:1]:
        text = f"row {row}, element {element} is {after[row, element]:.9g}, not in [{low}, {high}]"
        yield Violation(interval.number, LIMITS, f"table {table['name']}", text)


def check_update(
    interval: Interval, table: TableDescription, inputs: list[ShadowInputs]
) -> Iterator[Violation]:
    rule = table["rule"]
    last = inputs[-1].position
    rows = interval.before[table["variable"]]
    are_rows = all(ids.are_rows_of(rows) for step in inputs for ids in step.ids.values())
    if rule is None or last >= len(rule["rates"]) or not are_rows:
        return
    shadow = TableShadow(table).advance(interval.before, inputs)
    for name, where in _parts(table).items():
        actual, expected = interval.after[name][shadow.rows], shadow.parts[name]
        beyond = _beyond(actual, expected)
        if beyond is None:
            continue
        row = int(shadow.rows[beyond.row])
        text = (
            f"row {row}, element {beyond.element} is {beyond.text}, the result of {rule['kind']} "
            f"with the recorded gradients; {beyond.rows} of {len(actual)} rows are wrong"
        )
        invariant = UPDATE
        before = interval.before[name][shadow.rows].astype(np.float64)
        factor = _factor(actual - before, expected.value - before, expected.error)
        if factor is not None and name == table["variable"]:
            invariant = RATE
            rate = rule["rates"][last]
            text += f". It moves {factor:.6g} times as far as the step's rate, {rate:.6g}, moves it"
        yield Violation(interval.number, invariant, where, text)


def _parts(table: TableDescription) -> dict[str, str]:
    slots = {name: f"slot {slot} of table {table['name']}" for name, slot in table["slots"].items()}
    return {table["variable"]: f"table {table['name']}", **slots}


def _beyond(actual: Array, expected: Rounded) -> _Beyond | None:
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.abs(actual.astype(np.float64) - expected.value)
        # Values that are not finite are a separate violation.
        beyond = (distance > expected.error) & np.isfinite(distance)
        share = np.where(beyond, distance / expected.error, 0.0)
    if not beyond.any():
        return None
    row, element = (int(i) for i in np.unravel_index(np.argmax(share), share.shape))
    text = f"{actual[row, element]:.9g}, not {expected.value[row, element]:.9g}"
    return _Beyond(row, element, int(np.count_nonzero(beyond.any(1))), text)


def _factor(actual: Array, expected: Array, error: Array) -> float | None:
    clear = np.abs(expected) > 100 * error
    if np.count_nonzero(clear) < 2:
        return None
    factors = actual[clear] / expected[clear]
    unsure = error[clear] / np.abs(expected[clear])
    factor = float(np.median(factors))
    agree = np.abs(factors - factor) <= 2 * unsure
    is_other = abs(factor - 1) > 2 * float(np.median(unsure))
    return factor if is_other and agree.mean() > 0.9 else None
