"""Recognises the rule that a port to another framework uses instead of the table's own rule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from estimator_bridge.verification.compare.arithmetic.rounded import (
    Rounded,
    clip,
    root,
    rounded,
    square,
)
from estimator_bridge.verification.compare.arithmetic.update_rules import (
    RULES,
    Constants,
    Slots,
    TableShadow,
    Updated,
    UpdateRule,
)
from estimator_bridge.verification.explain.update_fits import (
    LIMITS,
    Guess,
    TableUpdate,
    fitted,
    with_rates,
    with_settings,
)
from estimator_bridge.verification.findings import Cause
from tf2_engine.types import Array

_ADDED = "added"
"""The setting, such as an epsilon, that a variant of a rule has in addition to the rule's own."""
_NEAR = 0.01
"""A number that is this close to a power of ten is probably a framework's default."""


def default_epsilon(update: TableUpdate, rows: Array) -> Cause | None:
    """Recognises an Adagrad with an epsilon that is a power of ten.

    Any other value may come from a different learning rate: as long as accumulators hardly change,
    a learning rate has the same effect as an epsilon.
    """
    return next((cause for value, cause in _epsilons(update, rows) if is_default(value)), None)


def is_default(value: float) -> bool:
    if value <= 0:
        return value == 0
    digits = math.log10(value)
    return abs(10 ** (digits - round(digits)) - 1) < _NEAR


def fitted_variant(update: TableUpdate, rows: Array) -> Cause | None:
    for _, cause in _epsilons(update, rows):
        return cause
    if update.rule["settings"].get("weight_decay_factor"):
        return None
    for variant, what in _decays(update):
        name = _ADDED if variant.variant else "weight_decay_factor"
        value = fitted(variant, rows, name)
        if value is not None:
            return Cause("weight decay", f"decays rows by {value:.3g}, {what}.")
    return None


def _epsilons(update: TableUpdate, rows: Array) -> Iterator[tuple[float, Cause]]:
    if update.rule["kind"] != "Adagrad":
        return
    for rule, where in ((_epsilon_outside, "to the root"), (_epsilon_inside, "under the root")):
        value = fitted(_variant(update, rule), rows, _ADDED)
        if value is not None:
            text = (
                f"adds an epsilon of {value:.3g} {where} of the accumulators; the table has none."
            )
            yield value, Cause("epsilon", text)


def _decays(update: TableUpdate) -> Iterator[tuple[TableUpdate, str]]:
    def l2(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
        return right(w, slots, g + w * settings[_ADDED], rate, settings)

    right = RULES[update.rule["kind"]]
    yield _variant(update, l2), "which it adds to the gradient (L2)"
    for multiplied, how in ((True, ", times the rate"), (False, "")):
        table = with_settings(
            update.table,
            weight_decay_factor=0.0,
            multiply_weight_decay_factor_by_learning_rate=multiplied,
        )
        yield dataclasses.replace(update, table=table), f"apart from the gradient{how}"


def _variant(update: TableUpdate, rule: UpdateRule) -> TableUpdate:
    return dataclasses.replace(
        update, table=with_settings(update.table, **{_ADDED: 0.0}), variant=rule
    )


def added_limit(update: TableUpdate, rows: Array) -> Cause | None:
    settings = update.rule["settings"]
    if any(settings.get(name) is not None for name in LIMITS):
        return None
    return _limit_of_gradients(update, rows) or _limit_of_weights(update, rows)


def _limit_of_gradients(update: TableUpdate, rows: Array) -> Cause | None:
    def limited(
        w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants
    ) -> Updated:
        return right(w, slots, clip(g, -settings[_ADDED], settings[_ADDED]), rate, settings)

    right = update.variant or RULES[update.rule["kind"]]
    ((ids, gradient),) = TableShadow(update.table).row_gradients([update.step])
    expected = update.expected()
    wrong = np.logical_or.reduce([update.beyond(expected, name) for name in update.names])
    wrong = wrong[np.searchsorted(expected.rows, ids)]
    # The limit is at most the smallest gradient that the side did not use unchanged.
    start = float(np.abs(gradient.value[wrong]).min(initial=np.inf))
    if not np.isfinite(start):
        return None
    table = with_settings(update.table, **{_ADDED: start})
    value = fitted(dataclasses.replace(update, table=table, variant=limited), rows, _ADDED)
    if value is None:
        return None
    return Cause("clipping", f"clips the gradients of rows to {value:.3g}; the table has no limit.")


def _limit_of_weights(update: TableUpdate, rows: Array) -> Cause | None:
    expected, name = update.expected(), update.names[0]
    wrong = update.beyond(expected, name)
    after, value = update.after[name][expected.rows][wrong], expected.parts[name].value[wrong]
    lows, highs = np.unique(after[value < after]), np.unique(after[value > after])
    if max(len(lows), len(highs)) != 1:
        return None
    low, high = (float(ends[0]) if len(ends) else None for ends in (lows, highs))
    table = with_settings(update.table, clip_weight_min=low, clip_weight_max=high)
    if not update.fits(Guess("", "", table), rows):
        return None
    ends = " and ".join(f"{end:.3g}" for end in (low, high) if end is not None)
    return Cause("clipping", f"clips weights at {ends}; the table has no such limits.")


def guesses(update: TableUpdate) -> Iterator[Guess]:
    kind = update.rule["kind"]
    if kind == "Adagrad":
        text = "keeps one accumulator for each row, of the mean of its squares (row-wise Adagrad)."
        yield Guess("update rule", text, variant=_row_wise)
        text = "divides by the accumulators as they were before the step."
        yield Guess("update rule", text, variant=_stale)
    if kind == "Adam":
        yield from _bias_corrections(update)
    if update.rule["settings"].get("weight_decay_factor"):
        undecayed = with_settings(update.table, weight_decay_factor=None)
        text = "decays rows after their update."
        yield Guess("weight decay", text, undecayed, variant=_late(update))
    yield from _shifted_rates(update)


def _bias_corrections(update: TableUpdate) -> Iterator[Guess]:
    settings, text = update.rule["settings"], "corrects the bias of early steps in the rate."
    beta_1, beta_2 = (float(settings[name] or 0.0) for name in ("beta_1", "beta_2"))
    for step in dict.fromkeys((update.number, update.step.position + 1)):
        root_2 = math.sqrt(1 - beta_2**step)
        table = with_rates(update.table, root_2 / (1 - beta_1**step))
        yield Guess("bias correction", text, table)
        # torch.optim.Adam corrects the root before it adds epsilon, which makes epsilon smaller.
        epsilon = float(settings["epsilon"] or 0.0) * root_2
        of_torch = with_settings(table, epsilon=epsilon, sum_inside_sqrt=False)
        yield Guess("bias correction", text, of_torch)


def _shifted_rates(update: TableUpdate) -> Iterator[Guess]:
    rates, position = update.rule["rates"], update.step.position
    for shift, which in ((-1, "before"), (1, "after")):
        other = position + shift
        if 0 <= other < len(rates) and rates[position] and rates[other] != rates[position]:
            text = f"has the rate of the step {which} this one, {rates[other]:.6g}."
            table = with_rates(update.table, rates[other] / rates[position])
            yield Guess("rate schedule", text, table)


def _late(update: TableUpdate) -> UpdateRule:
    settings, right = update.rule["settings"], RULES[update.rule["kind"]]
    factor = float(np.float32(settings["weight_decay_factor"] or 0.0))

    def rule(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, constants: Constants) -> Updated:
        w, new = right(w, slots, g, rate, constants)
        multiplied = settings.get("multiply_weight_decay_factor_by_learning_rate")
        return w - (rate * factor if multiplied else rounded(factor)) * w, new

    return rule


def _epsilon_outside(
    w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants
) -> Updated:
    a = slots["accumulators"] + square(g)
    return w - rate * g / (root(a) + settings[_ADDED]), {"accumulators": a}


def _epsilon_inside(
    w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants
) -> Updated:
    a = slots["accumulators"] + square(g)
    return w - rate * g / root(a + settings[_ADDED]), {"accumulators": a}


def _row_wise(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
    squares = square(g)
    mean = Rounded(squares.value.mean(1, keepdims=True), squares.error.max(1, keepdims=True))
    a = slots["accumulators"] + mean
    return w - rate * g / root(a), {"accumulators": a}


def _stale(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
    a = slots["accumulators"]
    return w - rate * g / root(a), {"accumulators": a + square(g)}
