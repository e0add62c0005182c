"""Recomputes the updates of a table in float64, with a bound on each element's rounding error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import RuleDescription, TableDescription, Values
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.arithmetic.rounded import UNIT_ROUNDOFF, Rounded, rounded
from estimator_bridge.verification.compare.arithmetic.update_rules import RULES, Rule, updated
from tf2_engine.types import Array

_ROUNDINGS_OF_RATE = 4
"""A learning rate that is computed from the step counts as this many roundings."""


class ShadowInputs(NamedTuple):
    """The inputs of a table's update in one step; a gradient that is missing counts as zeros."""

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


RowGradients = tuple[Array, Rounded]
"""The row numbers of the rows that a step updates, [n], and their summed gradients, [n, dim]."""


class ShadowRows(NamedTuple):
    """The row numbers of the updated rows, [n], and their values in each variable, [n, dim]."""

    rows: Array
    parts: dict[str, Rounded]


class TableShadow:
    """A copy of a table, updated by the table's own rule or by a `variant` of it.

    It is compared with the recorded table.
    """

    def __init__(self, table: TableDescription, *, variant: Rule | None = None) -> None:
        rule = table["rule"]
        assert rule is not None
        self._table, self._description = table, rule
        self._rule: Rule = variant or RULES[rule["kind"]]
        self.features: dict[str, lookups.Feature] = lookups.features_of([table])

    def advance(self, state: Values, steps: Sequence[ShadowInputs]) -> ShadowRows:
        return self.applied(state, steps, self.row_gradients(steps))

    def row_gradients(self, steps: Sequence[ShadowInputs]) -> list[RowGradients]:
        return [self._row_gradients(step) for step in steps]

    def applied(
        self, state: Values, steps: Sequence[ShadowInputs], sums: Sequence[RowGradients]
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

    def _row_gradients(self, step: ShadowInputs) -> RowGradients:
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
