"""Diagnoses lookups whose tables agree while the activations differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import ACTIVATIONS, VARIABLES, TableDescription
from estimator_bridge.settings import render
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.arithmetic.lookups import Feature, RecordedIds
from estimator_bridge.verification.explain.update_fits import shortened
from estimator_bridge.verification.findings import Cause, Evidence, close
from tf2_engine.types import Array


class _Lookup(NamedTuple):
    table: TableDescription
    feature: Feature
    activations: tuple[Array, Array]
    occurrences: RecordedIds

    def of_rows(self, rows: Array) -> Array:
        combiner = self.feature.combiner
        return lookups.look_up_rounded(rows, self.occurrences, combiner).value


def _differing_lookups(evidence: Evidence) -> Iterator[_Lookup]:
    ours, theirs = evidence.values(ACTIVATIONS)
    batch = evidence.batch or {}
    for table in evidence.settings[0]["tables"]:
        for key, feature in lookups.features_of([table]).items():
            occurrences = lookups.occurrences(batch, feature)
            if occurrences is None or key not in ours or key not in theirs:
                continue
            a, b = ours[key], theirs[key]
            # A different shape is reported for the array itself.
            if a.shape == b.shape and evidence.diverges(ACTIVATIONS, key, a, b):
                yield _Lookup(table, feature, (a, b), occurrences)


def wrong_lookups(evidence: Evidence) -> Iterator[Cause]:
    for lookup in _differing_lookups(evidence):
        rows = evidence.before_of(lookup.table["variable"])
        if rows is None:
            continue
        beyond = ~((lookup.occurrences.ids >= 0) & (lookup.occurrences.ids < len(rows)))
        if beyond.any():
            yield from _beyond_the_table(lookup, rows, beyond)
            continue
        expected = lookup.of_rows(rows)
        a, b = lookup.activations
        for side, right, wrong in (("B", a, b), ("A", b, a)):
            # The reference can judge one side only if it reproduces the other.
            if close(expected, right, 1e-5):
                yield from _wrong_lookups(lookup, side, rows, expected, wrong)


def _wrong_lookups(
    lookup: _Lookup, side: str, rows: Array, right: Array, wrong: Array
) -> Iterator[Cause]:
    combiner, occurrences = lookup.feature.combiner, lookup.occurrences
    mistakes = [
        *((name, text, change(occurrences), combiner) for name, text, change in _LOOKUPS),
        *(
            ("combiner", f"combines with {name!r}, not {combiner!r}.", occurrences, name)
            for name in ("sum", "mean", "sqrtn")
        ),
        *(("combiner", text, change(occurrences), "sum") for text, change in _DIVISORS),
        # After the combiners: if each weight is 1/n, dividing by n looks like squaring.
        *((name, text, change(occurrences), combiner) for name, text, change in _CHANGED_WEIGHTS),
        *(
            (
                "wrong row",
                f"looks up the row {which} the right one for each id.",
                occurrences._replace(ids=(occurrences.ids + shift) % len(rows)),
                combiner,
            )
            for shift, which in ((1, "after"), (-1, "before"))
        ),
    ]
    where = f"Table {lookup.table['name']}, feature {lookup.feature.key}: side {side}"
    for name, text, mistaken, other_combiner in mistakes:
        looked_up = lookups.look_up_rounded(rows, mistaken, other_combiner).value
        # A mistake that does not change this batch proves nothing.
        if close(looked_up, wrong, 1e-5) and not close(looked_up, right, 1e-5):
            yield Cause(name, f"{where} {text}")
            return
    if short := _short(lookup, rows, wrong):
        yield Cause("precision", f"{where} {short}")
        return
    if right.ndim == 3 and right.shape[1] > 1 and close(right[:, 1:], wrong[:, :-1], 1e-5):
        yield Cause("truncation", f"{where} leaves out the first position of each sequence.")
        return
    rows_taken = _other_row(lookup, rows, right, wrong)
    if rows_taken is not None:
        number, row = rows_taken
        yield Cause("wrong row", f"{where} looks up row {row} for the id {number}.")


def _short(lookup: _Lookup, rows: Array, wrong: Array) -> str | None:
    exact = lookup.of_rows(rows)
    for bits, kind in ((16, "bfloat16"), (13, "float16")):
        # Rounding to this type changes a number by at most half a unit in its last place.
        if close(exact, wrong, 2.0 ** (bits - 24)) and not close(exact, wrong, 1e-5):
            if np.array_equal(shortened(wrong, bits), wrong):
                return f"rounds activations to {kind}."
            if close(lookup.of_rows(shortened(rows, bits)), wrong, 1e-5):
                return f"looks up rows that are rounded to {kind}."
    return None


def _beyond_the_table(lookup: _Lookup, rows: Array, beyond: Array) -> Iterator[Cause]:
    dropped = lookup._replace(
        occurrences=lookups.selected(lookup.occurrences, np.flatnonzero(~beyond))
    )
    expected = dropped.of_rows(rows)
    a, b = lookup.activations
    for side, right, wrong in (("B", a, b), ("A", b, a)):
        if close(expected, right, 1e-5) and not close(expected, wrong, 1e-5):
            yield Cause(
                "id out of range",
                f"Table {lookup.table['name']}, feature {lookup.feature.key}: side {side} does not "
                f"drop ids that are not rows of the table. For example, there is no row "
                f"{int(lookup.occurrences.ids[beyond][0])}: the table has {len(rows)} rows.",
            )


def _other_row(lookup: _Lookup, rows: Array, right: Array, wrong: Array) -> tuple[int, int] | None:
    occurrences, combiner = lookup.occurrences, lookup.feature.combiner
    flat = (-1, right.shape[-1])
    right, wrong = right.reshape(flat), wrong.reshape(flat)
    tolerance = 1e-5 * float(np.max(np.abs(right), initial=0.0))
    differing = np.flatnonzero((np.abs(right - wrong) > tolerance).any(1))
    of_cell = [
        {*occurrences.ids[occurrences.cells == cell].tolist()} for cell in differing[:_MAX_CELLS]
    ]
    for number in sorted(set.intersection(*of_cell)) if of_cell else ():
        cell = int(differing[0])
        places = (occurrences.cells == cell) & (occurrences.ids == number)
        gain = float(lookups.gains_of(occurrences, combiner).value[places].sum())
        taken = rows[number] + (wrong[cell] - right[cell]) / (gain or 1.0)
        distances = np.abs(rows - taken).max(1)
        row = int(np.argmin(distances))
        if distances[row] <= 1e-4 * float(np.abs(rows[row]).max()) and row != number:
            return int(number), row
    return None


_MAX_CELLS = 50
"""This many of the differing activations are searched for an id that all of them contain."""


def _over_root(occurrences: RecordedIds) -> RecordedIds:
    total = np.zeros(int(np.prod(occurrences.shape)))
    np.add.at(total, occurrences.cells, occurrences.weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = occurrences.weights / np.sqrt(total)[occurrences.cells]
    return occurrences._replace(weights=np.nan_to_num(gains))


def _over_count(occurrences: RecordedIds) -> RecordedIds:
    counts = np.bincount(occurrences.cells, minlength=1)[occurrences.cells]
    return occurrences._replace(weights=occurrences.weights / counts)


def _weights(change: Callable[[Array], Array]) -> Callable[[RecordedIds], RecordedIds]:
    return lambda occurrences: occurrences._replace(weights=change(occurrences.weights))


_LOOKUPS: tuple[tuple[str, str, Callable[[RecordedIds], RecordedIds]], ...] = (
    ("lost weight", "uses 1 for every weight.", _weights(np.ones_like)),
    (
        "truncation",
        "leaves out the last id of each sample or sequence of full length.",
        lookups.without_last,
    ),
    (
        "dropped duplicate",
        "counts an id only once if it occurs twice in a sample.",
        lookups.without_duplicates,
    ),
    ("id 0", "treats the id 0 as padding.", lookups.without_id_0),
)
_CHANGED_WEIGHTS: tuple[tuple[str, str, Callable[[RecordedIds], RecordedIds]], ...] = (
    ("weights", "uses 1 for weights above 1.", _weights(lambda weights: np.minimum(weights, 1.0))),
    ("weights", "squares weights.", _weights(np.square)),
)
_DIVISORS: tuple[tuple[str, Callable[[RecordedIds], RecordedIds]], ...] = (
    ("divides by the root of the weights' sum.", _over_root),
    ("divides by the number of ids, not by the sum of their weights.", _over_count),
)


def stale_lookups(evidence: Evidence) -> Iterator[Cause]:
    step = evidence.after[0].number
    earlier = [side for side, _ in evidence.states if side.number != step - 1]
    differing = list(_differing_lookups(evidence))
    for (number, side), lookup, state in itertools.product(
        ((1, "B"), (0, "A")), differing, earlier
    ):
        rows = state.values[VARIABLES].get(lookup.table["variable"])
        if rows is None:
            continue
        if close(lookup.of_rows(rows), lookup.activations[number], 1e-5):
            names = {"table": lookup.table["name"], "feature": lookup.feature.key}
            yield Cause(
                *render.cause("pipelining", step=step, side=side, seen=state.number, **names)
            )
            return
