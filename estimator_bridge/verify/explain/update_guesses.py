"""Guesses how a side's update differs, the most specific guess first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge.verify.compare.arithmetic import lookups
from estimator_bridge.verify.compare.arithmetic.lookups import RecordedIds
from estimator_bridge.verify.compare.arithmetic.shadow import ShadowInputs
from estimator_bridge.verify.explain.update_fits import (
    Guess,
    Update,
    with_gradients,
    with_settings,
)
from estimator_bridge.verify.record.recording import TableDescription
from tf2_engine.types import Array

_CLIPPED = {"clip_weight_min": None, "clip_weight_max": None}
_CLIPPED_GRADIENTS = {"clip_gradient_min": None, "clip_gradient_max": None}
_NOT_GUESSED = ("clip", "weight_decay", "multiply_weight", "low_dimensional", "use_gradient")
"""Settings that have guesses of their own, or do not belong to the rule."""
_COMBINERS = ("sum", "mean", "sqrtn")

Change = Callable[[RecordedIds], RecordedIds]
"""Maps the occurrences of a batch to those that the side uses instead."""


def guesses(update: Update) -> Iterator[Guess]:
    if len(update.steps) != 1:  # each step may differ in its own way
        yield from _of_settings(update)
        return
    yield from _of_features(update)
    # Tried before duplicates: losing a sample may equal using only the first gradient of a row.
    yield from _of_samples(update)
    yield from _of_duplicates(update)
    yield from _of_gains(update)
    yield from _of_settings(update)
    yield from _of_precision(update)


def _of_settings(update: Update) -> Iterator[Guess]:
    table = update.table
    settings = table["rule"]["settings"] if table["rule"] else {}
    for limits, what in ((_CLIPPED, "weights"), (_CLIPPED_GRADIENTS, "gradients")):
        if any(settings.get(name) is not None for name in limits):
            text = f"does not hold {what} in their limits."
            yield Guess("clipping", text, with_settings(table, **limits), update.steps)
    low, high = (settings.get(name) for name in _CLIPPED_GRADIENTS)
    if low is not None or high is not None:
        steps = with_gradients(update.steps, lambda gradient: np.clip(gradient, low, high))
        text = "clips the gradient of each occurrence, not their sum."
        yield Guess("clipping", text, with_settings(table, **_CLIPPED_GRADIENTS), steps)
    if settings.get("weight_decay_factor"):
        without = with_settings(table, weight_decay_factor=None)
        yield Guess("weight decay", "does not decay rows.", without, update.steps)
        name = "multiply_weight_decay_factor_by_learning_rate"
        multiplied = bool(settings[name])
        verb = "does not multiply" if multiplied else "multiplies"
        changed = with_settings(table, **{name: not multiplied})
        yield Guess("weight decay", f"{verb} the decay by the rate.", changed, update.steps)
    yield from _of_rule(update, settings)


def _of_rule(update: Update, settings: Mapping[str, float | bool | None]) -> Iterator[Guess]:
    for name, value in settings.items():
        if name.startswith(_NOT_GUESSED):
            continue
        if isinstance(value, bool):
            text = f"has {name}={not value}, not {value}."
            changed = with_settings(update.table, **{name: not value})
            yield Guess("update rule", text, changed, update.steps)
        elif isinstance(value, float) and value:
            changed = with_settings(update.table, **{name: 0.0})
            yield Guess("update rule", f"has {name}=0, not {value:g}.", changed, update.steps)


def _of_features(update: Update) -> Iterator[Guess]:
    (step,) = update.steps
    for key in step.ids:
        if len(step.ids) > 1:
            ids = {name: occurrences for name, occurrences in step.ids.items() if name != key}
            text = f"leaves out the gradients of feature {key}."
            yield Guess("lost feature", text, update.table, [step._replace(ids=ids)])


def _of_duplicates(update: Update) -> Iterator[Guess]:
    changes: list[tuple[str, Change]] = [
        ("counts an id once that a sample has twice.", lookups.without_duplicates),
        ("takes the last of a row's gradients for their sum.", _last_of_row),
        ("takes the first of a row's gradients for their sum.", _first_of_row),
    ]
    for text, change in changes:
        yield _changed(update, "dropped duplicate", text, change)


def _of_samples(update: Update) -> Iterator[Guess]:
    (step,) = update.steps
    samples = max((occurrences.shape[0] for occurrences in step.ids.values()), default=0)
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


def _of_gains(update: Update) -> Iterator[Guess]:
    table = update.table
    for combiner in _COMBINERS:
        if combiner != table["combiner"]:
            text = f"sends gradients as of the combiner {combiner!r}, not {table['combiner']!r}."
            changed: TableDescription = {**table, "combiner": combiner}
            yield Guess("gradient combiner", text, changed, update.steps)
    plain: TableDescription = {**table, "combiner": "sum"}
    for power, text in ((0, "sends gradients without"), (2, "applies twice to gradients")):
        steps = [_with_ids(step, _gains_of(table, power)) for step in update.steps]
        yield Guess("gradient combiner", f"{text} the gains of the lookup.", plain, steps)


def _of_precision(update: Update) -> Iterator[Guess]:
    for bits, kind in ((16, "bfloat16"), (13, "float16")):
        steps = with_gradients(update.steps, functools.partial(_shortened, bits=bits))
        yield Guess("precision", f"rounds gradients to {kind}.", update.table, steps)


def _core_by_core(update: Update, cores: int, order: Sequence[int]) -> Guess:
    (step,) = update.steps
    samples = max(occurrences.shape[0] for occurrences in step.ids.values())
    size = samples // cores
    steps = [_with_ids(step, _samples(core * size, (core + 1) * size)) for core in order]
    text = f"updates rows with the sum of each of {cores} cores by itself, not with that of all."
    return Guess("gradient sum", text, update.table, steps)


def _changed(update: Update, name: str, text: str, change: Change) -> Guess:
    return Guess(name, text, update.table, [_with_ids(step, change) for step in update.steps])


def _with_ids(step: ShadowInputs, change: Change) -> ShadowInputs:
    return step._replace(ids={key: change(occurrences) for key, occurrences in step.ids.items()})


def _first_of_row(occurrences: RecordedIds) -> RecordedIds:
    _, first = np.unique(occurrences.ids, return_index=True)
    return lookups.selected(occurrences, np.sort(first))


def _last_of_row(occurrences: RecordedIds) -> RecordedIds:
    _, last = np.unique(occurrences.ids[::-1], return_index=True)
    return lookups.selected(occurrences, np.sort(len(occurrences.ids) - 1 - last))


def _samples(first: int, last: int, *, outside: bool = False) -> Change:
    """Returns a change that keeps samples `first` to `last` - 1, or with `outside` the others."""

    def change(occurrences: RecordedIds) -> RecordedIds:
        samples = occurrences.cells // int(np.prod(occurrences.shape[1:]))
        inside = (samples >= first) & (samples < last)
        return lookups.selected(occurrences, np.flatnonzero(inside != outside))

    return change


def _gains_of(table: TableDescription, power: int) -> Change:
    def change(occurrences: RecordedIds) -> RecordedIds:
        gains = lookups.gains_of(occurrences, table["combiner"])
        return occurrences._replace(weights=gains.value**power)

    return change


def _shortened(values: Array, bits: int) -> Array:
    """Rounds float32 numbers to the nearest without their last bits."""
    integers = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    half = np.uint64(1 << (bits - 1))
    odd = (integers >> np.uint64(bits)) & np.uint64(1)
    rounded = (integers + half - np.uint64(1) + odd) >> np.uint64(bits) << np.uint64(bits)
    return rounded.astype(np.uint32).view(np.float32)
