"""Applies the update rules of docs/numerics.md to values with error bounds.

A rule gets gradients, [rows, dim], that are already summed and clipped, and weights to which decay
has already been applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import RuleDescription, TableDescription, Values
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.arithmetic.rounded import (
    UNIT_ROUNDOFF,
    Rounded,
    choose,
    clip,
    magnitude,
    power,
    root,
    rounded,
    sign_times,
    square,
)
from tf2_engine.types import Array

Slots = Mapping[str, Rounded]
Updated = tuple[Rounded, dict[str, Rounded]]
Settings = Mapping[str, float | bool | None]
Constants = Mapping[str, float]
"""The settings of an optimizer that are numbers or flags, as float32 values."""
UpdateRule = Callable[[Rounded, Slots, Rounded, Rounded, Constants], Updated]
_ROUNDINGS_OF_RATE = 4
"""A learning rate that is computed from the step counts as this many roundings."""
RowSums = tuple[Array, Rounded]
"""The row numbers of the rows that a step updates, [n], and their summed gradients, [n, dim]."""


def updated(
    rule: UpdateRule, w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Settings
) -> Updated:
    constants = {
        name: _float32(value) for name, value in settings.items() if isinstance(value, (int, float))
    }
    g = clip(g, constants.get("clip_gradient_min"), constants.get("clip_gradient_max"))
    if settings.get("weight_decay_factor"):
        decay = rounded(constants["weight_decay_factor"])
        if settings.get("multiply_weight_decay_factor_by_learning_rate"):
            decay = decay * rate
        w = w - decay * w
    w, new = rule(w, slots, g, rate, constants)
    return clip(w, constants.get("clip_weight_min"), constants.get("clip_weight_max")), new


def _sgd(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
    return w - rate * g, {}


def _adagrad(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
    a = slots["accumulators"] + square(g)
    return w - rate * g / root(a), {"accumulators": a}


def _adagrad_momentum(
    w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants
) -> Updated:
    mu, beta = settings["momentum"], settings["beta2"]
    kept, taken = (1.0, 1.0) if beta == 1.0 else (beta, _one_minus(beta))
    a = kept * slots["accumulators"] + taken * square(g)
    exponent = -1.0 / settings["exponent"]
    s = g * power(a + settings["epsilon"], exponent)
    m = mu * slots["momenta"] + s
    step = mu * m + s if settings["use_nesterov"] else m
    return w - rate * step, {"accumulators": a, "momenta": m}


def _adam(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
    beta_1, beta_2 = settings["beta_1"], settings["beta_2"]
    epsilon = settings["epsilon"]
    m = beta_1 * slots["momenta"] + _one_minus(beta_1) * g
    v = beta_2 * slots["velocities"] + _one_minus(beta_2) * square(g)
    inside = settings["sum_inside_sqrt"]
    scale = root(v + _float32(epsilon * epsilon)) if inside else root(v) + epsilon
    return w - rate * m / scale, {"momenta": m, "velocities": v}


def _ftrl(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
    exponent = -settings["learning_rate_power"]
    a = slots["accumulators"] + square(g)
    raised = power(a, exponent)
    grown = raised - power(slots["accumulators"], exponent)
    limit = rounded(settings["l1_regularization_strength"])
    l2 = 2.0 * settings["l2_regularization_strength"]
    beta = settings["beta"]
    if settings["multiply_linear_by_learning_rate"]:
        z = slots["linears"] + rate * g - grown * w
        limit = rate * limit
        divisor = raised + (rate * l2 + beta)
    else:
        z = slots["linears"] + g - grown * w / rate
        divisor = (raised + beta) / rate + l2
    w = ((clip(z, -limit, limit) - z) / divisor).zero_where(divisor.value == 0)
    return w, {"accumulators": a, "linears": z}


def _momentum(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
    mu = settings["momentum"]
    m = mu * slots["momenta"] + g
    step = g + mu * m if settings["use_nesterov"] else m
    return w - rate * step, {"momenta": m}


def _rms_prop(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
    rho, mu = settings["rho"], settings["momentum"]
    ms = rho * slots["ms"] + _one_minus(rho) * square(g)
    mom = mu * slots["mom"] + rate * g / root(ms + settings["epsilon"])
    return w - mom, {"ms": ms, "mom": mom}


def _centered_rms_prop(
    w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants
) -> Updated:
    rho, mu = settings["rho"], settings["momentum"]
    ms = rho * slots["ms"] + _one_minus(rho) * square(g)
    mg = rho * slots["mg"] + _one_minus(rho) * g
    variance = ms - square(mg)
    mom = mu * slots["mom"] + rate * g / root(variance + settings["epsilon"])
    return w - mom, {"ms": ms, "mom": mom, "mg": mg}


def _proximal_adagrad(
    w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants
) -> Updated:
    a = slots["accumulators"] + square(g)
    eta = rate / root(a)
    return _shrunk(w - eta * g, eta, settings), {"accumulators": a}


def _proximal_yogi(
    w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants
) -> Updated:
    beta_1, beta_2 = settings["beta_1"], settings["beta_2"]
    m = beta_1 * slots["m"] + _one_minus(beta_1) * g
    v = slots["v"] - sign_times(slots["v"] - square(g), _one_minus(beta_2) * square(g))
    eta = rate / (root(v) + settings["epsilon"])
    return _shrunk(w - eta * m, eta, settings), {"v": v, "m": m}


def _adadelta(w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants) -> Updated:
    rho, epsilon = settings["rho"], settings["epsilon"]
    a = rho * slots["accumulators"] + _one_minus(rho) * square(g)
    u = g * root(slots["updates"] + epsilon) / root(a + epsilon)
    d = rho * slots["updates"] + _one_minus(rho) * square(u)
    return w - rate * u, {"accumulators": a, "updates": d}


def _frequency_estimator(
    w: Rounded, slots: Slots, g: Rounded, rate: Rounded, settings: Constants
) -> Updated:
    delta = rate - slots["last_hit_step"]
    held = clip(delta, None, settings["max_delta"])
    tau = settings["tau"]
    mixed = w * _one_minus(tau) + held * tau
    is_outlier = delta - settings["outlier_threshold"] * w
    return choose(is_outlier, held, mixed), {"last_hit_step": w * 0.0 + rate}


RULES: dict[str, UpdateRule] = {
    "SGD": _sgd,
    "Adagrad": _adagrad,
    "AdagradMomentum": _adagrad_momentum,
    "Adam": _adam,
    "FTRL": _ftrl,
    "Momentum": _momentum,
    "RMSProp": _rms_prop,
    "CenteredRMSProp": _centered_rms_prop,
    "ProximalAdagrad": _proximal_adagrad,
    "ProximalYogi": _proximal_yogi,
    "Adadelta": _adadelta,
    "FrequencyEstimator": _frequency_estimator,
}


def _shrunk(w: Rounded, eta: Rounded, settings: Constants) -> Rounded:
    left = magnitude(w) - eta * settings["l1_regularization_strength"]
    divisor = 1.0 + eta * settings["l2_regularization_strength"]
    return sign_times(w, clip(left, 0.0, None)) / divisor


def _float32(value: float) -> float:
    return float(np.float32(value))


def _one_minus(beta: float) -> float:
    return float(np.float32(1.0) - np.float32(beta))


class ShadowInputs(NamedTuple):
    """The inputs of a table's update in one step; a missing gradient counts as zeros."""

    position: int
    ids: dict[str, lookups.RecordedIds]
    gradients: Values

    def fits(self, rows: Array) -> bool:
        return all(
            ids.are_rows_of(rows)
            and (
                key not in self.gradients
                or self.gradients[key].shape == (*ids.shape, rows.shape[1])
            )
            for key, ids in self.ids.items()
        )


class ShadowRows(NamedTuple):
    """The row numbers of the updated rows, [n], and their values in each variable, [n, dim]."""

    rows: Array
    parts: dict[str, Rounded]


class TableShadow:
    """Recomputes updates of a table with its own rule or, if given, with the rule `variant`."""

    def __init__(self, table: TableDescription, *, variant: UpdateRule | None = None) -> None:
        rule = table["rule"]
        assert rule is not None
        self._table, self._description = table, rule
        self._rule: UpdateRule = variant or RULES[rule["kind"]]
        self.features: dict[str, lookups.Feature] = lookups.features_of([table])

    def advance(self, state: Values, steps: Sequence[ShadowInputs]) -> ShadowRows:
        return self.applied(state, steps, self.row_gradients(steps))

    def row_gradients(self, steps: Sequence[ShadowInputs]) -> list[RowSums]:
        return [self._row_gradients(step) for step in steps]

    def applied(
        self, state: Values, steps: Sequence[ShadowInputs], sums: Sequence[RowSums]
    ) -> ShadowRows:
        if self._updates_all_rows:
            rows = np.arange(len(state[self._table["variable"]]))
        else:
            rows = np.unique(np.concatenate([ids for ids, _ in sums]))
        names = [self._table["variable"], *self._table["slots"]]
        parts = {name: rounded(state[name][rows]) for name in names}
        for step, (ids, gradient) in zip(steps, sums, strict=True):
            if self._updates_all_rows:
                gradient, ids = gradient.among_zeros(ids, len(rows)), rows
            self._update(parts, np.searchsorted(rows, ids), gradient, step.position)
        return ShadowRows(rows, parts)

    @property
    def _updates_all_rows(self) -> bool:
        return not self._description["settings"].get("lazy_adam", True)

    def _update(self, parts: dict[str, Rounded], at: Array, g: Rounded, position: int) -> None:
        slots = {slot: parts[name].at(at) for name, slot in self._table["slots"].items()}
        w = parts[self._table["variable"]].at(at)
        settings = self._description["settings"]
        w, new = updated(self._rule, w, slots, g, _rate(self._description, position), settings)
        named = {name: new[slot] for name, slot in self._table["slots"].items() if slot in new}
        for name, value in {self._table["variable"]: w, **named}.items():
            parts[name].value[at], parts[name].error[at] = value.value, value.error

    def _row_gradients(self, step: ShadowInputs) -> RowSums:
        multipliers = self._description["multipliers"]
        multiplier = multipliers[step.position] if multipliers else 1.0
        ids, terms = [], []
        for key, occurrences in step.ids.items():
            gains = lookups.gains_of(occurrences, self._table["combiner"])
            if self.features[key].length:
                gains = rounded(occurrences.weights)
            gradient = step.gradients.get(key)
            if gradient is None:
                values = np.zeros((len(occurrences.ids), 1))
            else:
                values = gradient.reshape(-1, gradient.shape[-1])[occurrences.cells]
            sent = rounded(values)
            terms.append(gains.reshaped(-1, 1) * (sent * multiplier if multipliers else sent))
            ids.append(occurrences.ids)
        dim = max(term.value.shape[1] for term in terms)
        values, errors = (
            np.concatenate([np.broadcast_to(part, (len(part), dim)) for part in parts])
            for parts in ([t.value for t in terms], [t.error for t in terms])
        )
        return lookups.sums_by(np.concatenate(ids), Rounded(values, errors))


def _rate(rule: RuleDescription, position: int) -> Rounded:
    rate = rule["rates"][position]
    # The rate of a FrequencyEstimator is an integer.
    roundings = 0 if rule["kind"] == "FrequencyEstimator" else _ROUNDINGS_OF_RATE
    return Rounded(np.float64(rate), np.float64(roundings * UNIT_ROUNDOFF * abs(rate)))
