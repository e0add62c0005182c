"""Compares two recordings, step by step and row by row. numpy alone."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from estimator_bridge.verify import tolerance
from estimator_bridge.verify.evidence import Evidence, Pair
from estimator_bridge.verify.lookups import features_of, occurrences
from estimator_bridge.verify.names import Named, Names
from estimator_bridge.verify.recording import (
    ACTIVATIONS,
    CHECKPOINT,
    EXPORT,
    LOSS,
    SERVED,
    VARIABLES,
    Array,
    Recording,
    Step,
    Values,
    read_arrays,
)
from estimator_bridge.verify.result import (
    Batches,
    Difference,
    Divergence,
    Outcome,
    Point,
    Result,
    Series,
    differing_settings,
)

Sensitivity = Mapping[tuple[str, str], Mapping[int, float]]
"""How far each array moved at each step when the start was nudged, by group and name."""


Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it so far, and of how much."""


def untold(what: str, done: int, total: int) -> None:
    """Tells nobody."""


def compare(
    a: Recording,
    b: Recording,
    sensitivity: Sensitivity | None = None,
    progress: Progress = untold,
) -> Result:
    """Returns what a comparison found; causes are looked for afterwards.

    Args:
        sensitivity: adds to what is allowed.
    """
    settings = a.settings, b.settings
    names = Names(settings[0]["tables"], settings[1]["tables"])
    features = {
        key: weight for t in settings[0]["tables"] for key, (_, weight) in t["features"].items()
    }
    num_terms = max(
        (tolerance.terms(read_arrays(path), features) for path in a.batches()),
        default=1,
    )
    comparison = _Comparison(names, num_terms, sensitivity or {})
    states: tuple[Pair, ...] = ()
    evidence: Evidence | None = None
    remarks: list[str] = []
    total = len(a.numbers())
    ends_alone = settings[1]["engine"] == CHECKPOINT
    for one, other in itertools.zip_longest(a.steps(), b.steps()):
        progress("comparing", len(comparison.steps), total)
        if one is None or other is None:
            remarks.append(f"side {'B' if one is None else 'A'} made more steps")
            break
        made = one.number - (comparison.steps[0] if comparison.steps else one.number)
        if ends_alone:
            # What it does not tell is not compared; what led to a difference cannot be seen.
            kept = {group: one.values[group] for group in other.values}
            comparison.step((Step(one.number, kept), other), made)
        elif comparison.step((one, other), made) and evidence is None:
            batch = a.batch(made - 1) if made and settings[0]["cores"] == 1 else None
            evidence = Evidence(states, (one, other), batch)
        if VARIABLES in one.values:
            states = ((one, other), *states)[:2]
    made = comparison.steps[-1] - comparison.steps[0] if comparison.steps else 0
    progress("comparing", total, total)
    outcomes = []
    if not ends_alone:
        outcomes = [*_outcomes(a, b, comparison, made), *_signatures(a, b)]
    for series in comparison.series.values():
        if series.first is not None:
            series.first = _with_ids(series, comparison.steps[0], a)
    result = Result(
        settings=settings,
        num_terms=num_terms,
        steps=comparison.steps,
        series=sorted(comparison.series.values(), key=lambda one: one.order),
        config=_differences(settings[0]["config"], settings[1]["config"]),
        batches=_compare_batches(a, b),
        outcomes=outcomes,
        only=(sorted(comparison.only[0]), sorted(comparison.only[1])),
        remarks=[*remarks, *comparison.remarks],
        evidence=evidence,
        measured=sensitivity is not None,
        notes=list(_notes(a, b)),
    )
    differ = {name for _, name, _, _ in differing_settings(*settings)}
    if result.equal and differ:
        result.notes.append(
            f"Settings differ, to no effect in these steps: {', '.join(sorted(differ))}. What they "
            "say of initial values does not show, since side B begins with side A's."
        )
    return result


def sensitivity_of(a: Recording, nudged: Recording) -> dict[tuple[str, str], dict[int, float]]:
    """Returns how far a side moved when its start was nudged, by group, name and step."""
    result = compare(a, nudged)
    return {
        (series.group, series.name): {point.step: point.difference for point in series.points}
        for series in result.series
    }


class _Comparison:
    """The series as they grow, a step after the other."""

    def __init__(self, names: Names, num_terms: int, sensitivity: Sensitivity) -> None:
        self.series: dict[tuple[str, str], Series] = {}
        self.steps: list[int] = []
        self.only: tuple[set[str], set[str]] = (set(), set())
        self._names = names
        self._num_terms = num_terms
        self._sensitivity = sensitivity
        self._scales: dict[str, float] = {}
        self._moved: dict[tuple[str, str], float] = {}
        # Of losses and activations, which are what a model computes.
        self._relative: dict[tuple[str, str], float] = {}
        self.remarks: list[str] = []

    def step(self, pair: tuple[Step, Step], made: int) -> bool:
        """Compares one step; returns whether anything diverged in it."""
        number = pair[0].number
        self.steps.append(number)
        diverged = False
        for group in sorted({*pair[0].values, *pair[1].values}):
            ours, theirs = (step.values.get(group, {}) for step in pair)
            paired = dict(self._names.paired(group, ours, theirs, self.only))
            scales = self._scales_of(group, paired)
            for named, (one, other) in paired.items():
                key = group, named.name
                moved = self._sensitivity.get(key, {}).get(number, 0.0)
                self._moved[key] = moved = max(moved, self._moved.get(key, 0.0))
                if group in (ACTIVATIONS, LOSS) and scales[named.scale]:
                    self._relative[key] = relative = moved / scales[named.scale]
                    if relative > tolerance.MOST_MEASURED and not self.remarks:
                        self.remarks.append(
                            f"a start that is off by its last bits alone moves the {named.role} "
                            f"{named.name} by {relative:.0%} by step {number}, so that from there "
                            "on nothing can be told: compare fewer --steps"
                        )
                bound = tolerance.allowed(self._num_terms, made, scales[named.scale])
                bound += tolerance.MEASURED * moved
                diverged |= self._add(group, named, number, one, other, bound)
        return diverged

    def bound(self, made: int, *values: Array) -> float:
        """Returns what is allowed of what the trained model computes, which has no step."""
        scale = tolerance.magnitude(*values)
        return tolerance.allowed(self._num_terms, made, scale) + tolerance.MEASURED * scale * max(
            self._relative.values(), default=0.0
        )

    def _scales_of(
        self, group: str, paired: Mapping[Named, tuple[Array, Array]]
    ) -> dict[str, float]:
        # Errors of a sum that cancels come from its terms, so a scale never shrinks.
        for named, arrays in paired.items():
            key = f"{group}:{named.scale}"
            self._scales[key] = max(self._scales.get(key, 0.0), tolerance.magnitude(*arrays))
        return {named.scale: self._scales[f"{group}:{named.scale}"] for named in paired}

    def _add(
        self, group: str, named: Named, number: int, one: Array, other: Array, bound: float
    ) -> bool:
        series = self.series.setdefault(
            (group, named.name), Series(group, named.name, named.table, named.role)
        )
        if one.shape != other.shape:
            if series.first is None:
                series.first = Divergence(number, None, None, f"{one.shape}", f"{other.shape}", 0)
            return True
        point, where = measured(number, one, other, bound)
        series.points.append(point)
        if point.difference <= point.allowed:
            return False
        if series.first is None:
            off = np.abs(np.subtract(one, other, dtype=np.float64)) > point.allowed
            rows = int(np.count_nonzero(off.reshape(len(off), -1).any(1))) if off.ndim else 1
            series.first = Divergence(
                number,
                where[0] if where else None,
                list(where[1:]) or None,
                f"{one[where]:.9g}",
                f"{other[where]:.9g}",
                rows,
            )
        return True


def measured(step: int, one: Array, other: Array, bound: float) -> tuple[Point, tuple[int, ...]]:
    """Returns how far two arrays of one shape are apart, and where most."""
    if one.dtype.kind not in "fiub":
        same = bool(np.array_equal(one, other))
        where = (0,) * one.ndim
        return Point(step, 0.0 if same else np.inf, 0.0, 0, 0.0), where
    if not one.size:
        return Point(step, 0.0, 0.0, 0, bound), ()
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(np.subtract(one, other, dtype=np.float64))
    difference = np.where((one == other) | ((one != one) & (other != other)), 0.0, difference)
    difference = np.where(np.isnan(difference), np.inf, difference)
    where = tuple(int(i) for i in np.unravel_index(np.argmax(difference), one.shape))
    scale = tolerance.magnitude(one, other)
    largest = float(difference[where])
    return (
        Point(
            step,
            largest,
            largest / scale if scale else 0.0,
            _ulps(one[where], other[where]),
            bound if one.dtype.kind == "f" else 0.0,
        ),
        where,
    )


def _ulps(one: Any, other: Any) -> int:
    """Returns how many float32 numbers two of them are apart."""
    if not isinstance(one, np.float32) or not np.isfinite([one, other]).all():
        return 0

    def ordered(number: np.float32) -> int:
        bits = int(number.view(np.int32))
        # Negative floats count downwards from zero.
        return bits if bits >= 0 else -(bits & 0x7FFFFFFF)

    return abs(ordered(one) - ordered(np.float32(other)))


def _with_ids(series: Series, start: int, a: Recording) -> Divergence:
    """Returns the first divergence of an array with the ids that it is about."""
    first = series.first
    assert first is not None
    if first.row is None or series.table is None:
        return first
    if series.group == VARIABLES:
        return first._replace(ids=[first.row])
    settings = a.settings
    batch = a.batch(first.step - start - 1) if settings["cores"] == 1 else None
    feature = features_of(settings["tables"]).get(series.name)
    found = None if batch is None or feature is None else occurrences(batch, feature)
    if found is None:
        return first
    samples = found.cells // (found.shape[1] if len(found.shape) > 1 else 1)
    return first._replace(ids=found.ids[samples == first.row].tolist())


def _compare_batches(a: Recording, b: Recording) -> Batches:
    """Compares the inputs one by one: how far ahead each was read does not count."""
    if not b.batches():
        return Batches(len(a.batches()), True, None, False)
    number, first, reordered = 0, None, False
    for of in range(len(a.inputs)):
        digests = [[_digest(read_arrays(path)) for path in side.batches(of)] for side in (a, b)]
        both = list(zip(*digests, strict=False))
        if first is None:
            first = next((number + i for i, (x, y) in enumerate(both) if x != y), None)
            rows = [sorted(side[: len(both)]) for side in digests]
            reordered = first is not None and rows[0] == rows[1]
        number += len(both)
    return Batches(number, False, first, reordered)


def _digest(batch: Values) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(batch):
        array = np.ascontiguousarray(batch[name])
        digest.update(f"{name} {array.dtype.kind} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.digest()


def _outcomes(a: Recording, b: Recording, comparison: _Comparison, made: int) -> Iterator[Outcome]:
    """Yields metrics, predictions and exported variables."""
    both = a.outcomes(), b.outcomes()
    for kind in sorted({*both[0], *both[1]}):
        for side in (0, 1):
            if kind not in both[side]:
                # Where a program failed it did not come to all that follows.
                if (a, b)[side].failure is None:
                    yield Outcome(kind, "", 0.0, 0.0, f"only on side {'BA'[side]}")
                break
        else:
            for name in sorted({*both[0][kind], *both[1][kind]}):
                yield _outcome(kind, name, both[0][kind], both[1][kind], comparison, made)


def _signatures(a: Recording, b: Recording) -> Iterator[Outcome]:
    """Yields where exported models do not take and give the same."""
    for number in range(min(len(a.exported()), len(b.exported()))):
        both = a.signatures(number), b.signatures(number)
        # A model that could not be loaded has a note.
        if not all(both):
            continue
        for name in sorted({*both[0], *both[1]}):
            where = f"{SERVED}-{number}"
            if name not in both[0] or name not in both[1]:
                side = "A" if name in both[0] else "B"
                yield Outcome(where, name, 0.0, 0.0, f"a signature on side {side} alone")
            for one in _differences(both[0].get(name, {}), both[1].get(name, {})) or ():
                note = f"{one.name}: {one.a} on A, {one.b} on B"
                yield Outcome(where, name, 0.0, 0.0, note)


def _notes(a: Recording, b: Recording) -> Iterator[str]:
    if b.settings["engine"] == CHECKPOINT and a.outcomes():
        kinds = dict.fromkeys(kind.partition("-")[0] for kind in a.outcomes())
        yield f"Side B is a checkpoint: {', '.join(sorted(kinds))} of side A cannot be compared."
    for letter, side in (("A", a), ("B", b)):
        if side.left_out:
            yield (
                f"On side {letter} the program trains other models too. The first that trains is "
                f"compared; {side.left_out} further calls of `train` were not made."
            )
        if side.failure is not None:
            yield (
                f"On side {letter} the program failed after its training ({side.failure}). What "
                "it did not come to is not compared."
            )
    for number in range(len(a.exported())):
        refused = a.unasked(number), b.unasked(number)
        for name in sorted({*refused[0], *refused[1]}):
            why = "; ".join(
                f"on {letter}: {of[name]}"
                for letter, of in zip("AB", refused, strict=True)
                if name in of
            )
            yield (
                f"The signature {name} of export {number} could not be asked ({why}), so that its "
                "answers are not compared. One that takes Examples is asked with those of a file: "
                "`--examples`."
            )


def _outcome(
    kind: str, name: str, ours: Values, theirs: Values, comparison: _Comparison, made: int
) -> Outcome:
    if name not in ours or name not in theirs:
        return Outcome(kind, name, 0.0, 0.0, f"only on side {'A' if name in ours else 'B'}")
    one, other = ours[name], theirs[name]
    if one.shape != other.shape:
        return Outcome(kind, name, 0.0, 0.0, f"shapes {one.shape} and {other.shape}")
    point, _ = measured(0, one, other, comparison.bound(made, one, other))
    # A variable that is exported has the bound that it had in training.
    trained = comparison.series.get((VARIABLES, name)) if kind.startswith(EXPORT) else None
    bound = trained.points[-1].allowed if trained and trained.points else point.allowed
    return Outcome(kind, name, point.difference, bound)


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[Difference] | None:
    """Returns where two device configurations differ; None if a side has none."""
    if not one or not other:
        return None
    return [
        Difference(path, one.get(path, "not set"), other.get(path, "not set"))
        for path in sorted({*one, *other})
        if one.get(path) != other.get(path)
    ]
