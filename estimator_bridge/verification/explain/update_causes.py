"""Diagnoses the updates of tables, from the rows and slots of one step."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import GRADIENTS, VARIABLES, TableDescription, Values
from estimator_bridge.verification.compare.arithmetic.update_rules import ShadowInputs, ShadowRows
from estimator_bridge.verification.compare.elements import unequal_rows
from estimator_bridge.verification.explain import ported_rules
from estimator_bridge.verification.explain.search import Search
from estimator_bridge.verification.explain.update_fits import (
    GRADIENT,
    RATE,
    Guess,
    TableUpdate,
    fitted,
    guesses,
    with_rates,
    with_settings,
)
from estimator_bridge.verification.findings import Cause, Evidence
from tf2_engine.types import Array, Object

_FITTED_NAMES = {
    RATE: "learning rate",
    GRADIENT: "gradient scale",
    "weight_decay_factor": "weight decay",
    "clip_weight_min": "clipping",
    "clip_weight_max": "clipping",
    "clip_gradient_min": "clipping",
    "clip_gradient_max": "clipping",
}
"""Maps values that can be fitted to causes' names; for all other values it is "update rule"."""


class Diagnosis(NamedTuple):
    """A cause; `explains` says that it fits so well that the difference cannot be rounding."""

    cause: Cause
    explains: bool = True


def diagnoses(evidence: Evidence, search: Search | None = None) -> Iterator[Diagnosis]:
    wrong = [_wrong_side(evidence, table) for table in evidence.settings[0]["tables"]]
    breaches = [one for one in wrong if one is not None]
    if breaches and all(_is_late(evidence, *one) for one in breaches):
        step = evidence.after[0].number
        names = ", ".join(one.table["name"] for _, one, _ in breaches)
        text = (
            f"Table {names}: side {breaches[0][0]} does not update in step {step}, and makes this "
            "step's update in the next step, as with pipelining. So its lookups are stale."
        )
        yield Diagnosis(Cause("stale activation", text))
        return
    for (side, one, rows), (_, other, other_rows) in itertools.combinations(breaches, 2):
        if _has_rate_of(one, rows, other) and _has_rate_of(other, other_rows, one):
            names = f"{one.table['name']} and {other.table['name']}"
            text = f"Tables {names}: on side {side} the learning rates of the two are swapped."
            yield Diagnosis(Cause("rate tag", text))
    for side, update, rows in breaches:
        what = f"other rules for table {update.table['name']}"
        goes_on = functools.partial(search.allows, what) if search else update.goes_on
        yield _diagnosis(side, dataclasses.replace(update, goes_on=goes_on), rows)


def _has_rate_of(update: TableUpdate, rows: Array, other: TableUpdate) -> bool:
    rates = [one.rule["rates"][one.step.position] for one in (update, other)]
    if not rates[0]:
        return False
    table = with_rates(update.table, rates[1] / rates[0])
    return update.fits(Guess("rate tag", "", table), rows)


def _is_late(evidence: Evidence, side: str, update: TableUpdate, rows: Array) -> bool:
    number = "AB".index(side)
    if _stays(update, rows) is None or evidence.following is None:
        return False
    # Both sides continue from side A's state.
    start = _after(evidence, update.table, 0)
    later = evidence._replace(after=evidence.following)
    after = _after(later, update.table, number)
    if start is None or after is None or not evidence.residuals:
        return False
    late = TableUpdate(update.table, start, after, update.step)
    return not len(late.wrong_rows())


def _wrong_side(
    evidence: Evidence, table: TableDescription
) -> tuple[str, TableUpdate, Array] | None:
    before, position = evidence.before, evidence.position
    if table["rule"] is None or before is None:
        return None
    start = before[0].values[VARIABLES]
    gradients = evidence.values(GRADIENTS)
    sides = [_inputs(table, position, evidence.ids, of_side) for of_side in gradients]
    steps = [step for step in sides if step is not None and step.fits(start[table["variable"]])]
    if len(steps) < len(sides):
        return None
    earlier = before[0].values.get(GRADIENTS, {})
    previous = _inputs(table, position - 1, evidence.previous_ids, earlier)
    updates, wrong = [], []
    for number in (0, 1):
        after = _after(evidence, table, number)
        if after is None:
            return None
        step = evidence.after[0].number
        update = TableUpdate(table, start, after, steps[number], previous, number=step)
        updates.append(update)
        wrong.append(np.union1d(update.wrong_rows(), _wrongly_moved(update)))
    if bool(len(wrong[0])) == bool(len(wrong[1])):
        return None
    side = 1 if len(wrong[1]) else 0
    return "AB"[side], updates[side], wrong[side].astype(np.int64)


def _wrongly_moved(update: TableUpdate) -> Array:
    touched = update.expected().rows
    moved = np.zeros(len(update.before[update.names[0]]), bool)
    for name in update.names:
        moved |= unequal_rows(update.before[name], update.after[name])
    moved[touched] = False
    return np.flatnonzero(moved)


def _diagnosis(side: str, update: TableUpdate, rows: Array) -> Diagnosis:
    touched = update.expected().rows
    outside = rows[~np.isin(rows, touched)]
    inside = rows[np.isin(rows, touched)]
    where = f"Table {update.table['name']}"
    if 0 < len(inside) < len(touched):
        where += f", {len(inside)} of the {len(touched)} rows of the batch"
        where += f" (row {inside[0]})" if len(inside) == 1 else ""
    where += f": side {side}"
    lost = _lost_slots(update, inside)
    if lost is not None:
        return Diagnosis(Cause(lost.name, f"Table {update.table['name']}: side {side} {lost.text}"))
    for test in _TESTS:
        if len(outside) and test is not _fits_guess:
            continue
        cause = test(update, rows if len(outside) else inside)
        if cause is not None:
            return Diagnosis(Cause(cause.name, f"{where} {cause.text}"))
    if len(outside):
        text = f"also moves {len(outside)} rows that are in no sample, such as row {outside[0]}."
        text = f"Table {update.table['name']}: side {side} {text}"
        return Diagnosis(Cause("untouched rows", text))
    text = (
        f"{where} does not follow {update.rule['kind']}, although the gradients agree; "
        "no single setting or gradient that was tried explains it."
    )
    return Diagnosis(Cause("update rule", text), explains=False)


def _stays(update: TableUpdate, rows: Array) -> Cause | None:
    stay = [np.array_equal(update.after[n][rows], update.before[n][rows]) for n in update.names]
    if not stay[0]:
        return None
    expected = update.expected()
    beyond = update.beyond(expected, update.names[0])[np.isin(expected.rows, rows)]
    if not beyond.any():  # also if there are no rows
        return None
    written = "" if all(stay) else " (but updates slots)"
    return Cause("no update", f"leaves rows unchanged{written}, although the rule moves them.")


def _slot_stays(update: TableUpdate, rows: Array) -> Cause | None:
    expected = update.expected()
    places = np.flatnonzero(np.isin(expected.rows, rows))
    for name, slot in update.table["slots"].items():
        beyond = update.beyond(expected, name)[places]
        stays = np.array_equal(update.after[name][rows], update.before[name][rows])
        if beyond.any() and stays:
            return Cause("frozen slot", f"does not write the slot {slot}.")
    return None


def _late_decay(update: TableUpdate, rows: Array) -> Cause | None:
    settings = update.rule["settings"]
    factor = float(np.float32(settings.get("weight_decay_factor") or 0.0))
    if not factor:
        return None
    if settings.get("multiply_weight_decay_factor_by_learning_rate"):
        factor *= update.rule["rates"][update.step.position]
    undecayed = with_settings(update.table, weight_decay_factor=None)
    expected = update.expected(Guess("", "", undecayed))
    name = update.table["variable"]
    decayed = expected.parts[name] * (1.0 - factor)
    late = ShadowRows(expected.rows, {**expected.parts, name: decayed})
    wrong = update.beyond(late, name)[np.isin(late.rows, rows)]
    return None if wrong.any() else Cause("weight decay", "decays rows after their update.")


def _short_slots(update: TableUpdate, rows: Array) -> Cause | None:
    expected = update.expected()
    for name, part in {update.table["variable"]: "rows", **update.table["slots"]}.items():
        values = update.after[name][rows]
        if not update.beyond(expected, name).any() or values.size < 8:
            continue
        for bits, kind in ((16, "bfloat16"), (13, "float16")):
            if not (values.view(np.uint32) & np.uint32((1 << bits) - 1)).any():
                return Cause("precision", f"keeps {part} as {kind}.")
    return None


def _fits_guess(update: TableUpdate, rows: Array) -> Cause | None:
    every = itertools.chain(guesses(update), ported_rules.guesses(update))
    tried = itertools.takewhile(lambda _: update.goes_on(), every)
    guess = next((guess for guess in tried if update.fits(guess, rows)), None)
    return None if guess is None else Cause(guess.name, guess.text)


def _fits_number(update: TableUpdate, rows: Array) -> Cause | None:
    settings = update.rule["settings"]
    numbers = [name for name, value in settings.items() if isinstance(value, float)]
    for name in (RATE, GRADIENT, *numbers):
        value = fitted(update, rows, name)
        if value is None:
            continue
        if name == RATE:
            text = f"moves rows as if the rate were {value:.6g} times the rate of the step."
        elif name == GRADIENT:
            text = f"applies {value:.6g} times the gradients."
        else:
            # Inside a root the epsilon is squared, so its sign has no effect.
            shown = abs(value) if name == "epsilon" else value
            text = f"behaves as with {name}={shown:.6g}, not {settings[name]:g}."
        return Cause(_FITTED_NAMES.get(name, "update rule"), text)
    return None


_TESTS: tuple[Callable[[TableUpdate, Array], Cause | None], ...] = (
    _stays,
    _slot_stays,
    _fits_guess,
    _late_decay,
    _short_slots,
    ported_rules.default_epsilon,
    ported_rules.added_limit,
    _fits_number,
    ported_rules.fitted_variant,
)


def _lost_slots(update: TableUpdate, rows: Array) -> Cause | None:
    left = np.setdiff1d(np.arange(len(update.before[update.names[0]])), update.expected().rows)
    begun = dict(update.before)
    lost = []
    for name, slot in update.table["slots"].items():
        others = update.after[name][left]
        constant = float(others.flat[0]) if others.size else 0.0
        is_new = (others == constant).all() and (update.before[name] != constant).any()
        if is_new and ported_rules.is_default(constant):
            begun[name] = np.full_like(update.before[name], constant)
            lost.append(f"{slot} = {constant:g}")
    begins = dataclasses.replace(update, before=begun)
    if not lost or not begins.fits(Guess("", ""), rows):
        return None
    return Cause("lost slot", f"loses the slots' initial values; it starts with {', '.join(lost)}.")


def _inputs(
    table: TableDescription, position: int, ids: Mapping[str, Object], gradients: Values
) -> ShadowInputs | None:
    known = {key: ids[key] for key in table["features"] if ids.get(key) is not None}
    if len(known) < len(table["features"]):
        return None
    return ShadowInputs(position, known, {k: g for k, g in gradients.items() if k in known})


def _after(evidence: Evidence, table: TableDescription, side: int) -> Values | None:
    values = {name: both[side] for name, both in evidence.parts(table).items()}
    return values if len(values) == 1 + len(table["slots"]) else None
