"""Finds the update rule that a side follows: the table's rule with one thing changed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import RuleDescription, TableDescription, Values
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.arithmetic.lookups import RecordedIds
from estimator_bridge.verification.compare.arithmetic.rounded import (
    SMALLEST_NORMAL,
    Rounded,
    root,
)
from estimator_bridge.verification.compare.arithmetic.update_rules import (
    Constants,
    ShadowInputs,
    ShadowRows,
    Slots,
    TableShadow,
    Updated,
    UpdateRule,
)
from tf2_engine.types import Array

_MARGIN = 4.0
"""An element fits a guess if it is within this multiple of its error bound."""
_FITS = 0.98
"""A guess is right if at least this share of elements fits; clipping may affect the others."""
_ITERATIONS = 12
_STARTS = (0.1, 10.0)
"""The search for a factor starts from 1, and then from each of these."""
_STEP = 1e-3
"""A setting is changed by this share of its value to measure the effect."""
RATE, GRADIENT = "rate", "gradient"
"""Factors of the learning rate and the gradients, which are fitted like settings of a rule."""

_CLIPPED = {"clip_weight_min": None, "clip_weight_max": None}
_CLIPPED_GRADIENTS = {"clip_gradient_min": None, "clip_gradient_max": None}
LIMITS = (*_CLIPPED, *_CLIPPED_GRADIENTS)
_NOT_GUESSED = ("clip", "weight_decay", "multiply_weight", "low_dimensional", "use_gradient")
"""Settings that are not fitted: other guesses cover them, or they are not part of the rule."""
_MAX_DUPLICATES = 2000
"""If a row occurs more often than this, updating it once for each occurrence is not tried."""
_COMBINERS = ("sum", "mean", "sqrtn")
ChangeOfIds = Callable[[RecordedIds], RecordedIds]
"""Maps the ids of a batch to the ids that the side seems to use instead."""


class Guess(NamedTuple):
    """One thing that a side may do differently: its table, its inputs, or its rule (`variant`).

    `text` is the rest of a sentence that starts with "side B".
    """

    name: str
    text: str
    table: TableDescription | None = None
    steps: Sequence[ShadowInputs] = ()
    variant: UpdateRule | None = None


_UNCHANGED = Guess("", "")


@dataclasses.dataclass(frozen=True)
class TableUpdate:
    """An update that does not follow the table's rule and needs an explanation.

    Attributes:
        previous: the inputs of the previous step's update, if they are known.
        goes_on: whether there is time left to try another guess.
        variant: the rule that the update is compared with; None means the table's own rule.
        number: the global step after the update.
    """

    table: TableDescription
    before: Values
    after: Values
    step: ShadowInputs
    previous: ShadowInputs | None = None
    goes_on: Callable[[], bool] = lambda: True
    variant: UpdateRule | None = None
    number: int = 0

    @property
    def rule(self) -> RuleDescription:
        return known_rule(self.table)

    @property
    def names(self) -> list[str]:
        return [self.table["variable"], *self.table["slots"]]

    def expected(self, guess: Guess = _UNCHANGED) -> ShadowRows:
        shadow = TableShadow(guess.table or self.table, variant=guess.variant or self.variant)
        with np.errstate(all="ignore"):
            return shadow.advance(self.before, guess.steps or [self.step])

    def beyond(self, expected: ShadowRows, name: str) -> Array:
        part = expected.parts[name]
        off = np.abs(self.after[name][expected.rows] - part.value)
        return ~(off <= _MARGIN * part.error + SMALLEST_NORMAL)

    def wrong_rows(self) -> Array:
        expected = self.expected()
        wrong = np.zeros(len(expected.rows), bool)
        for name in self.names:
            wrong |= self.beyond(expected, name).any(1)
        return expected.rows[wrong]

    def fits(self, guess: Guess, rows: Array) -> bool:
        expected = self.expected(guess)
        places = np.flatnonzero(np.isin(expected.rows, rows))
        # A row that the guess does not update must be unchanged.
        left = rows[~np.isin(rows, expected.rows)]
        stays = all(np.array_equal(self.after[n][left], self.before[n][left]) for n in self.names)
        return stays and all(
            1 - np.mean(self.beyond(expected, name)[places]) >= _FITS if len(places) else True
            for name in self.names
        )


def known_rule(table: TableDescription) -> RuleDescription:
    assert table["rule"] is not None
    return table["rule"]


def with_settings(table: TableDescription, **settings: float | bool | None) -> TableDescription:
    rule = known_rule(table)
    return {**table, "rule": {**rule, "settings": {**rule["settings"], **settings}}}


def with_rates(table: TableDescription, factor: float) -> TableDescription:
    rule = known_rule(table)
    return {**table, "rule": {**rule, "rates": [rate * factor for rate in rule["rates"]]}}


def with_gradients(step: ShadowInputs, change: Callable[[Array], Array]) -> ShadowInputs:
    return step._replace(gradients={key: change(each) for key, each in step.gradients.items()})


def fitted(update: TableUpdate, rows: Array, setting: str) -> float | None:
    if setting not in (RATE, GRADIENT):
        right = float(update.rule["settings"][setting] or 0.0)
        return _fit(update, rows, setting, right, right, update.names)
    # A rule may hide a factor in some variables: Adagrad moves rows by the rate even if a gradient
    # is large, so only the slots reveal the gradient's scale. So each variable is also tried alone.
    attempts = [(1.0, update.names), *((1.0, [name]) for name in reversed(update.names))]
    attempts += [(start, update.names) for start in _STARTS]
    values = (_fit(update, rows, setting, 1.0, start, names) for start, names in attempts)
    return next((value for value in values if value is not None), None)


def _fit(
    update: TableUpdate, rows: Array, setting: str, right: float, start: float, names: Sequence[str]
) -> float | None:
    value = _solved(update, rows, setting, start, names)
    if value is None or abs(value - right) <= 1e-6 * abs(right):
        return None
    return value if update.fits(_guess_of(update, setting, value), rows) else None


def _solved(
    update: TableUpdate, rows: Array, setting: str, value: float, names: Sequence[str]
) -> float | None:
    for _ in range(_ITERATIONS):
        change = _newton_step(update, rows, setting, value, names) if update.goes_on() else None
        if change is None:
            return None
        value += change
        if abs(change) <= 1e-7 * abs(value):
            break
    return value if np.isfinite(value) else None


def _newton_step(
    update: TableUpdate, rows: Array, setting: str, value: float, names: Sequence[str]
) -> float | None:
    size = _STEP * abs(value) or _STEP
    here = update.expected(_guess_of(update, setting, value))
    there = update.expected(_guess_of(update, setting, value + size))
    places = np.flatnonzero(np.isin(here.rows, rows))
    steps, weights = [], []
    for name in names:
        part, moved = here.parts[name], there.parts[name]
        slope = (moved.value - part.value)[places] / size
        off = update.after[name][here.rows[places]] - part.value[places]
        with np.errstate(divide="ignore", invalid="ignore"):
            step, weight = off / slope, np.abs(slope) / part.error[places]
        # Only elements count that determine the setting to within a hundredth.
        counts = np.isfinite(step) & (weight * max(abs(value), _STEP) > 100)
        steps.append(step[counts])
        weights.append(weight[counts])
    every, weight = np.concatenate(steps), np.concatenate(weights)
    if len(every) < 2:
        return None
    order = np.argsort(every)
    below = np.cumsum(weight[order])
    return float(every[order][np.searchsorted(below, below[-1] / 2)])


def _guess_of(update: TableUpdate, setting: str, value: float) -> Guess:
    if setting == RATE:
        return Guess("", "", with_rates(update.table, value))
    if setting == GRADIENT:
        return Guess("", "", steps=[with_gradients(update.step, lambda g: g * value)])
    return Guess("", "", with_settings(update.table, **{setting: value}))


def guesses(update: TableUpdate) -> Iterator[Guess]:
    # Limits come first, because the sum of a single core may not be clipped where the sum of all
    # cores is.
    yield from _of_limits(update)
    yield from _of_features(update)
    # Samples come before duplicates: a lost sample may look like a dropped gradient of a row.
    yield from _of_samples(update)
    yield from _of_duplicates(update)
    yield from _of_gains(update)
    yield from _of_settings(update)
    yield from _of_precision(update)
    yield from _of_kept_gradients(update)


def _of_limits(update: TableUpdate) -> Iterator[Guess]:
    table, settings = update.table, update.rule["settings"]
    for limits, what in ((_CLIPPED, "weights"), (_CLIPPED_GRADIENTS, "gradients")):
        if any(settings.get(name) is not None for name in limits):
            text = f"does not keep {what} within their limits."
            yield Guess("clipping", text, with_settings(table, **limits))
    low, high = (settings.get(name) for name in _CLIPPED_GRADIENTS)
    if low is not None or high is not None:
        step = with_gradients(update.step, lambda gradient: np.clip(gradient, low, high))
        text = "clips the gradient of each occurrence, not their sum."
        yield Guess("clipping", text, with_settings(table, **_CLIPPED_GRADIENTS), [step])


def _of_settings(update: TableUpdate) -> Iterator[Guess]:
    table, settings = update.table, update.rule["settings"]
    if settings.get("weight_decay_factor"):
        without = with_settings(table, weight_decay_factor=None)
        yield Guess("weight decay", "does not decay rows.", without)
        name = "multiply_weight_decay_factor_by_learning_rate"
        multiplied = bool(settings[name])
        verb = "does not multiply" if multiplied else "multiplies"
        changed = with_settings(table, **{name: not multiplied})
        yield Guess("weight decay", f"{verb} the decay by the rate.", changed)
    for name, value in settings.items():
        if name.startswith(_NOT_GUESSED):
            continue
        if isinstance(value, bool):
            text = f"has {name}={not value}, not {value}."
            yield Guess("update rule", text, with_settings(table, **{name: not value}))
        elif isinstance(value, float) and value:
            changed = with_settings(table, **{name: 0.0})
            yield Guess("update rule", f"has {name}=0, not {value:g}.", changed)


def _of_features(update: TableUpdate) -> Iterator[Guess]:
    every = update.step.ids
    for key in every if len(every) > 1 else ():
        ids = {name: occurrences for name, occurrences in every.items() if name != key}
        text = f"leaves out the gradients of feature {key}."
        yield Guess("lost feature", text, steps=[update.step._replace(ids=ids)])


def _of_duplicates(update: TableUpdate) -> Iterator[Guess]:
    changes: list[tuple[str, ChangeOfIds]] = [
        ("counts an id only once if it occurs twice in a sample.", lookups.without_duplicates),
        ("uses the last of a row's gradients, not their sum.", _last_of_row),
        ("uses the first of a row's gradients, not their sum.", _first_of_row),
    ]
    for text, change in changes:
        yield _changed(update, "dropped duplicate", text, change)
    text = "divides the gradient of a row by how often the row occurs."
    yield _shared(update, text, [lambda counts, ranks: 1.0 / counts])
    counts = _counts(update.step)
    most = max((int(ranks.max(initial=0)) for _, ranks in counts.values()), default=0)
    if 0 < most < _MAX_DUPLICATES:
        text = "updates a row for each of its occurrences, one after the other, not with their sum."
        ranks = [functools.partial(_of_rank, rank) for rank in range(most + 1)]
        one_by_one = _shared(update, text, ranks)
        if update.rule["kind"] == "Adagrad":
            yield _squares_of_each(update, one_by_one)
        yield one_by_one


def _counts(step: ShadowInputs) -> dict[str, tuple[Array, Array]]:
    every = np.concatenate([each.ids for each in step.ids.values()])
    order = np.argsort(every, kind="stable")
    _, starts, of_row, counts = np.unique(
        every[order], return_index=True, return_inverse=True, return_counts=True
    )
    ranks, of_occurrence = np.empty_like(order), np.empty_like(order)
    ranks[order] = np.arange(len(order)) - starts[of_row]
    of_occurrence[order] = counts[of_row]
    ends = np.cumsum([len(each.ids) for each in step.ids.values()])[:-1]
    parts = zip(np.split(of_occurrence, ends), np.split(ranks, ends), strict=True)
    return dict(zip(step.ids, parts, strict=True))


def _of_rank(rank: int, counts: Array, ranks: Array) -> Array:
    return (ranks == rank).astype(np.float64)


def _shared(
    update: TableUpdate, text: str, shares: Sequence[Callable[[Array, Array], Array]]
) -> Guess:
    step, steps = update.step, []
    known = _counts(step)
    for share in shares:
        ids = {}
        for key, each in step.ids.items():
            combiner = None if len(each.shape) > 1 else update.table["combiner"]
            gains = lookups.gains_of(each, combiner)
            factors = share(*known[key])
            changed = each._replace(weights=gains.value * factors)
            ids[key] = lookups.selected(changed, np.flatnonzero(factors))
        steps.append(step._replace(ids=ids))
    plain: TableDescription = {**update.table, "combiner": "sum"}
    return Guess("gradient sum", text, plain, steps)


def _squares_of_each(update: TableUpdate, one_by_one: Guess) -> Guess:
    def rule(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
        # Separate updates, one after the other, would add the same squares.
        a = update.expected(one_by_one).parts[update.names[1]]
        return w - rate * g / root(a), {"accumulators": a}

    # With small gradients, both kinds of updates lead to the same rows.
    text = (
        "adds the square of each occurrence to the accumulators, not the square of their sum. "
        "Perhaps it updates a row for each of its occurrences, one after the other."
    )
    return Guess("update rule", text, variant=rule)


def _of_samples(update: TableUpdate) -> Iterator[Guess]:
    samples = max((ids.shape[0] for ids in update.step.ids.values()), default=0)
    parts = {
        "the last sample": (samples - 1, samples),
        "the first sample": (0, 1),
        "the first half of the batch": (0, samples // 2),
        "the second half of the batch": (samples // 2, samples),
    }
    for what, (first, last) in parts.items():
        name = "lost sample" if last - first == 1 else "lost core"
        change = _samples(first, last, outside=True)
        yield _changed(update, name, f"leaves out the gradients of {what}.", change)
    for cores in (2, 4, 8):
        if samples % cores == 0 and samples > cores:
            yield _core_by_core(update, cores, range(cores))
            yield _core_by_core(update, cores, range(cores - 1, -1, -1))


def _of_gains(update: TableUpdate) -> Iterator[Guess]:
    table = update.table
    for combiner in _COMBINERS:
        if combiner != table["combiner"]:
            text = f"sends gradients as for the combiner {combiner!r}, not {table['combiner']!r}."
            changed: TableDescription = {**table, "combiner": combiner}
            yield Guess("gradient combiner", text, changed)
    plain: TableDescription = {**table, "combiner": "sum"}
    for power, text in ((0, "sends gradients without"), (2, "applies twice to gradients")):
        step = _with_ids(update.step, _gains_of(table, power))
        yield Guess(
            "gradient combiner",
            f"{text} the factors of the lookup (weights, combiner).",
            plain,
            [step],
        )


def _of_precision(update: TableUpdate) -> Iterator[Guess]:
    for bits, kind in ((16, "bfloat16"), (13, "float16")):
        step = with_gradients(update.step, functools.partial(shortened, bits=bits))
        yield Guess("precision", f"rounds gradients to {kind}.", steps=[step])


def _of_kept_gradients(update: TableUpdate) -> Iterator[Guess]:
    previous, step = update.previous, update.step
    if previous is None or previous.gradients.keys() != step.gradients.keys():
        return
    both = step._replace(
        ids={key: lookups.joined([previous.ids[key], step.ids[key]]) for key in step.ids},
        gradients={
            key: np.concatenate([previous.gradients[key], step.gradients[key]])
            for key in step.gradients
        },
    )
    text = "adds the gradients of the previous step. Set them to zero in every step, for example "
    yield Guess("kept gradients", text + "with optimizer.zero_grad().", steps=[both])


def _core_by_core(update: TableUpdate, cores: int, order: Sequence[int]) -> Guess:
    size = max(ids.shape[0] for ids in update.step.ids.values()) // cores
    steps = [_with_ids(update.step, _samples(core * size, (core + 1) * size)) for core in order]
    text = f"updates rows with the sum of each of {cores} cores, not with the sum of all cores."
    return Guess("gradient sum", text, steps=steps)


def _changed(update: TableUpdate, name: str, text: str, change: ChangeOfIds) -> Guess:
    return Guess(name, text, steps=[_with_ids(update.step, change)])


def _with_ids(step: ShadowInputs, change: ChangeOfIds) -> ShadowInputs:
    return step._replace(ids={key: change(occurrences) for key, occurrences in step.ids.items()})


def _first_of_row(occurrences: RecordedIds) -> RecordedIds:
    _, first = np.unique(occurrences.ids, return_index=True)
    return lookups.selected(occurrences, np.sort(first))


def _last_of_row(occurrences: RecordedIds) -> RecordedIds:
    _, last = np.unique(occurrences.ids[::-1], return_index=True)
    return lookups.selected(occurrences, np.sort(len(occurrences.ids) - 1 - last))


def _samples(first: int, last: int, *, outside: bool = False) -> ChangeOfIds:
    def change(occurrences: RecordedIds) -> RecordedIds:
        samples = occurrences.cells // int(np.prod(occurrences.shape[1:]))
        inside = (samples >= first) & (samples < last)
        return lookups.selected(occurrences, np.flatnonzero(inside != outside))

    return change


def _gains_of(table: TableDescription, power: int) -> ChangeOfIds:
    def change(occurrences: RecordedIds) -> RecordedIds:
        gains = lookups.gains_of(occurrences, table["combiner"])
        return occurrences._replace(weights=gains.value**power)

    return change


def shortened(values: Array, bits: int) -> Array:
    integers = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    half = np.uint64(1 << (bits - 1))
    odd = (integers >> np.uint64(bits)) & np.uint64(1)
    rounded = (integers + half - np.uint64(1) + odd) >> np.uint64(bits) << np.uint64(bits)
    return rounded.astype(np.uint32).view(np.float32)
