"""Compares the metrics of an evaluation, and recomputes them to find out why they differ."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from estimator_bridge.recording.array_files import Values, is_list
from estimator_bridge.recording.files import (
    LOSS,
    METRIC_VARIABLE,
    OTHER,
    OWN,
    RECOMPUTED,
    SEEN,
    Recording,
)
from estimator_bridge.verification.compare import elements
from estimator_bridge.verification.compare.arithmetic.rounded import UNIT_ROUNDOFF
from estimator_bridge.verification.findings import Outcome
from tf2_engine.types import Array

Allowed = Callable[[str, float], tuple[float, str]]
"""Takes the name and magnitude of an output; returns its tolerance, and the reason."""

_OfValue = TypeVar("_OfValue")

SEEN_BY = "values of metrics: "
"""Prefix of the names of recorded values from which metrics are computed."""

_ROUNDINGS_OF_VALUE = 16
_BLOCK = 2**18
"""This many elements are compared at a time, so that float64 copies fit into a cache."""

FOLLOWS = "follows from the values that it is computed from"
COMPUTED_FROM_EQUAL = "computed from equal numbers"

EVALUATION, METRIC_FUNCTION, METRIC = "evaluation", "metric function", "metric"
"""Why a metric may differ although its inputs are equal; METRIC means that the cause is unknown."""


class Fault(NamedTuple):
    """Why a metric is wrong, and an observation that shows it. Both are "" for a correct metric."""

    cause: str = ""
    note: str = ""


class _Metric(NamedTuple):
    a: Array | None
    b: Array | None
    again_a: Array | None
    again_b: Array | None
    crossed: Array | None


def compare_metrics(a: Recording, b: Recording, name: str, allowed: Allowed) -> Iterator[Outcome]:
    seen = a.outcomes.part(name, SEEN), b.outcomes.part(name, SEEN)
    number = tuple(side.outcomes.about(name).get("batches", 0) for side in (a, b))
    if all(number) and number[0] != number[1]:
        note = f"side A evaluates {number[0]} batches, and side B {number[1]}"
        yield Outcome(name, "batches", 0.0, 0.0, note, cause=EVALUATION)
    values = _differences(*seen)
    values_agree = True
    for key, one in _arguments(values).items():
        outcome = one.outcome(name, f"{SEEN_BY}{key}", *allowed(f"{SEEN_BY}{key}", one.scale))
        values_agree = values_agree and outcome.equal
        if outcome.difference or not outcome.equal:
            yield outcome
    judge = _Judge(name, allowed, _are_same(values), values_agree, _roundings(seen[0]))
    for key, metric in _metrics(a, b, name, seen):
        yield judge.outcome(key, metric)


def _differences(a: Values, b: Values) -> dict[str, SampleDifferences]:
    differences: dict[str, SampleDifferences] = {}
    for key in sorted(a.keys() & b.keys()):
        differences[key] = SampleDifferences()
        differences[key].add(a[key], b[key])
    return differences


def _arguments(values: Mapping[str, _OfValue]) -> dict[str, _OfValue]:
    return {key: one for key, one in values.items() if not key.startswith(METRIC_VARIABLE)}


def _are_same(values: Mapping[str, SampleDifferences]) -> bool:
    known = _arguments(values)
    if not known.keys() - {LOSS}:
        known = {**values} if len(values) > len(known) else {}
    return bool(known) and not any(one.largest or one.note for one in known.values())


def _metrics(
    a: Recording, b: Recording, name: str, seen: tuple[Values, Values]
) -> Iterator[tuple[str, _Metric]]:
    values_a, values_b = (
        {key: each for chunk in side.outcomes.chunks(name) for key, each in chunk.items()}
        for side in (a, b)
    )
    again_a, again_b = a.outcomes.part(name, RECOMPUTED), b.outcomes.part(name, RECOMPUTED)
    cores = a.settings["cores"], b.settings["cores"]
    for key in sorted({*values_a, *values_b}):
        again = again_a.get(OWN + key), again_b.get(OWN + key), again_b.get(OTHER + key)
        if key == LOSS and cores == (1, 1):
            means = [_mean(side.get(LOSS)) for side in seen]
            again = means[0], means[1], means[0]
        yield key, _Metric(values_a.get(key), values_b.get(key), *again)


def _of_one_type(a: Array, b: Array) -> tuple[Array, Array]:
    if elements.is_float(a.dtype) and elements.is_float(b.dtype):
        dtype = max((a.dtype, b.dtype), key=elements.unit_roundoff)
    elif a.dtype.kind in "iu" and b.dtype.kind in "iu":
        dtype = np.result_type(a, b)
    else:
        return a, b
    return a.astype(dtype, copy=False), b.astype(dtype, copy=False)


def _mean(losses: Array | None) -> Array | None:
    if losses is None or is_list(losses) or not losses.size:
        return None
    return np.asarray(np.mean(losses.astype(np.float64)))


def _roundings(seen: Mapping[str, Array]) -> float:
    """Estimates the error of a computed metric, as a multiple of one rounding.

    The n roundings of a sum partly cancel; their total is about as large as √n roundings (Higham,
    Accuracy and Stability of Numerical Algorithms, 2002, section 2.8).
    """
    sizes = [
        sum(np.size(one) for one in array) if is_list(array) else array.size
        for array in _arguments(seen).values()
    ]
    return _ROUNDINGS_OF_VALUE + math.sqrt(max(sizes, default=0))


@dataclasses.dataclass(frozen=True)
class _Judge:
    name: str
    allowed: Allowed
    is_same: bool
    values_agree: bool
    roundings: float

    def outcome(self, key: str, metric: _Metric) -> Outcome:
        differences = SampleDifferences()
        if metric.a is None or metric.b is None:
            differences.add(metric.a, metric.b)
            return differences.outcome(self.name, key, 0.0, "")
        differences.add(*_of_one_type(metric.a, metric.b))
        if differences.note:
            return differences.outcome(self.name, key, 0.0, "")
        magnitude = elements.magnitude(metric.a, metric.b)
        rounding = self.roundings * UNIT_ROUNDOFF * magnitude
        fault, allowed, why = Fault(), *self.allowed(key, differences.scale)
        base = allowed
        if self._is_consistent(metric, rounding):
            fault = self._fault(metric, rounding)
            carried = _apart(metric.again_b, metric.crossed) if self.values_agree else 0.0
            allowed, why = 3 * rounding + carried, FOLLOWS
        if self.is_same:
            allowed, why = min(base, allowed, rounding), COMPUTED_FROM_EQUAL
            if not fault.cause and differences.largest > allowed:
                fault = Fault(METRIC, "it is computed differently, from equal values")
        outcome = differences.outcome(self.name, key, allowed, why)
        return outcome._replace(note=outcome.note or fault.note, cause=fault.cause)

    def _is_consistent(self, metric: _Metric, rounding: float) -> bool:
        if metric.again_a is None or metric.again_b is None or metric.crossed is None:
            return False
        pairs = (metric.a, metric.again_a), (metric.b, metric.again_b)
        return any(_apart(*pair) <= rounding for pair in pairs)

    def _fault(self, metric: _Metric, rounding: float) -> Fault:
        for side, reported, again in (
            ("A", metric.a, metric.again_a),
            ("B", metric.b, metric.again_b),
        ):
            if _apart(reported, again) > rounding:
                return Fault(
                    EVALUATION,
                    f"side {side} reports {elements.shown(reported)}, but its metric function "
                    f"gives {elements.shown(again)} for the values that were recorded",
                )
        if _apart(metric.again_a, metric.crossed) > rounding:
            return Fault(
                METRIC_FUNCTION,
                f"the metric functions differ: for side A's values, A's function gives "
                f"{elements.shown(metric.again_a)}, and B's gives {elements.shown(metric.crossed)}",
            )
        return Fault()


def _apart(one: Array | None, other: Array | None) -> float:
    if one is None or other is None or one.shape != other.shape:
        return math.inf
    return float(np.max(elements.differences(one, other), initial=0.0))


class SampleDifferences:
    """How the samples of one output differ; `note` describes unequal types, shapes or lengths."""

    def __init__(self, *, is_new: bool = True) -> None:
        self.largest = 0.0
        self.scale = 0.0
        self.note = "" if is_new else "not all samples have it"
        self._where = ""
        self._count = 0
        self._different = 0

    def add(self, a: Array | None, b: Array | None) -> None:
        if a is None or b is None:
            side = "B" if a is None else "A"
            some = "further samples " if self._count else ""
            self.note = self.note or f"{some}only on side {side}"
            return
        if is_list(a) or is_list(b):
            self._add_one_by_one(a, b)
            return
        names = elements.type_name(a), elements.type_name(b)
        if names[0] != names[1]:
            self.note = self.note or f"{names[0]} on A, {names[1]} on B"
        elif a.shape != b.shape:
            self.note = self.note or f"shapes {a.shape} and {b.shape}"
        else:
            self._add_alike(a, b)

    def outcome(self, kind: str, name: str, allowed: float, why: str) -> Outcome:
        where = self._where
        if where and self._count > 1:
            verb = "differ" if self._different != 1 else "differs"
            where = f"{where}; {self._different} of {self._count} samples {verb}"
        return Outcome(kind, name, self.largest, allowed, self.note, where, why)

    def _add_one_by_one(self, a: Array, b: Array) -> None:
        if len(a) != len(b):
            self.note = self.note or f"{len(a)} samples on A, {len(b)} on B"
            return
        for one, other in zip(a, b, strict=True):
            number = self._count
            self.add(np.asarray(one)[np.newaxis], np.asarray(other)[np.newaxis])
            if self.note and self._count == number:
                if "sample" not in self.note:
                    self.note = f"sample {number}: {self.note}"
                return

    def _add_alike(self, a: Array, b: Array) -> None:
        if not a.ndim:
            self._add_block(a, b)
            return
        rows = max(1, _BLOCK // max(1, a[:1].size))
        for start in range(0, len(a), rows):
            self._add_block(a[start : start + rows], b[start : start + rows])

    def _add_block(self, a: Array, b: Array) -> None:
        apart = elements.differences(a, b)
        self.scale = max(self.scale, elements.magnitude(a, b))
        self._different += elements.count_rows(apart)
        if apart.size and (largest := float(apart.max())) > self.largest:
            self.largest = largest
            index = tuple(int(i) for i in np.unravel_index(int(apart.argmax()), apart.shape))
            self._where = self._place(index) + self._values(a[index], b[index], largest)
        self._count += len(apart) if apart.ndim else 1

    def _place(self, index: tuple[int, ...]) -> str:
        if not index:
            return ""
        element = f", element {list(index[1:])}" if index[1:] else ""
        return f"sample {self._count + index[0]}{element}: "

    @staticmethod
    def _values(a: object, b: object, largest: float) -> str:
        apart = elements.ulps(a, b) if math.isfinite(largest) else 0
        ulps = f" ({apart} ULP apart)" if apart else ""
        return f"{elements.shown(a)} on A, {elements.shown(b)} on B{ulps}"
