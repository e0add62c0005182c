"""Pairs the steps of two recordings, and in each step the arrays with the same meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import (
    ACTIVATIONS,
    CHECKPOINT,
    GRADIENTS,
    LOSS,
    VARIABLES,
    RecordedStep,
    Recording,
    SideDescription,
    Values,
    is_outside,
    parts_of_tables,
)
from estimator_bridge.verification import findings
from estimator_bridge.verification.compare import elements
from estimator_bridge.verification.compare.arithmetic.lookups import (
    Feature,
    RecordedIds,
    joined,
    occurrences,
)
from estimator_bridge.verification.findings import Divergence, StepPair
from tf2_engine.types import Array, Object

ArrayPair = tuple[Array, Array]
IdsOfFeatures = Mapping[str, RecordedIds | None]
"""The ids of features in a batch; None for features whose ids are unknown."""
_OF_CORE = re.compile(r"(.*) \(core (\d+)\)$")


def computed(a: SideDescription, b: SideDescription) -> list[str]:
    return sorted({*a.get("computed", ()), *b.get("computed", ())})


class PairedName(NamedTuple):
    """The two names of an array (side A, side B), its role, and its table, if any."""

    name: str
    table: str | None
    role: str
    name_b: str


class PairedStep(NamedTuple):
    """The same step on both sides; arrays of different type or shape are in `unlike`."""

    sides: StepPair
    arrays: Mapping[str, Mapping[PairedName, ArrayPair]]
    unlike: Sequence[tuple[str, PairedName, Divergence]]

    @property
    def number(self) -> int:
        return self.sides[0].number


class Pairing:
    """Pairs the arrays of both sides; `only` collects the arrays that one side lacks."""

    def __init__(self, a: Recording, b: Recording) -> None:
        self._sides, settings = (a, b), (a.settings, b.settings)
        self._outside = {*computed(*settings)}
        self._is_checkpoint = settings[1]["engine"] == CHECKPOINT
        self.only: tuple[set[str], set[str]] = (set(), set())
        tables, _ = both = [each["tables"] for each in settings]
        self._parts = [parts_of_tables(each) for each in both]
        self._table_of_feature = {key: each["name"] for each in tables for key in each["features"]}

    def steps(self) -> Iterator[PairedStep]:
        sides = (map(joined_step, side.steps()) for side in self._sides)
        for pair in zip(*sides, strict=False):
            one, other = (step.values for step in pair)
            # A checkpoint has only the variables of the last step.
            groups = sorted(other if self._is_checkpoint else {*one, *other})
            arrays: dict[str, dict[PairedName, ArrayPair]] = {}
            unlike = []
            for group in groups:
                arrays[group] = {}
                for name, both in self._paired(group, one.get(group, {}), other.get(group, {})):
                    kinds = [f"{elements.type_name(each)} {list(each.shape)}" for each in both]
                    if (both[0].shape, both[0].dtype) == (both[1].shape, both[1].dtype):
                        arrays[group][name] = both
                    else:
                        divergence = Divergence(pair[0].number, None, None, kinds[0], kinds[1], 0)
                        unlike.append((group, name, divergence))
            yield PairedStep(pair, arrays, unlike)

    def _paired(self, group: str, a: Values, b: Values) -> Iterator[tuple[PairedName, ArrayPair]]:
        names_a, names_b = self._names(group, 0, a), self._names(group, 1, b)
        self.only[0].update(f"{group} {names_a[key]}" for key in names_a.keys() - names_b.keys())
        self.only[1].update(f"{group} {names_b[key]}" for key in names_b.keys() - names_a.keys())
        for key, name in names_a.items():
            if key in names_b:
                name_b = names_b[key]
                yield self._paired_name(group, name, name_b), (a[name], b[name_b])

    def _names(self, group: str, side: int, values: Values) -> dict[Object, str]:
        # If the model's own optimizer trains a table, its slots have different names.
        parts = self._parts[side] if group == VARIABLES else {}
        return {
            parts.get(name, name): name
            for name in values
            if name not in self._outside and not is_outside(name)
        }

    def _paired_name(self, group: str, name: str, name_b: str) -> PairedName:
        if group == VARIABLES:
            if name not in self._parts[0]:
                return PairedName(name, None, findings.DENSE, name_b)
            table, slot = self._parts[0][name]
            role = findings.TABLE if slot is None else f"{findings.SLOT} {slot}"
            return PairedName(name, table, role, name_b)
        roles = {ACTIVATIONS: findings.ACTIVATION, GRADIENTS: findings.GRADIENT}
        table_of_feature = self._table_of_feature.get(name)
        return PairedName(name, table_of_feature, roles.get(group, group), name_b)


def joined_step(step: RecordedStep) -> RecordedStep:
    groups = dict(step.values)
    unused = {name: np.zeros_like(groups[ACTIVATIONS][name]) for name in unused_gradients(step)}
    if unused:
        groups[GRADIENTS] = {**groups[GRADIENTS], **unused}
    values = {
        group: named if group == VARIABLES else _joined(group, named)
        for group, named in groups.items()
    }
    return RecordedStep(step.number, values)


def ids_of_step(
    recording: Recording, position: int, cores: int, features: Mapping[str, Feature]
) -> IdsOfFeatures:
    parts = [recording.batch(position, core, cores) for core in range(cores)]
    known = [part for part in parts if part is not None]
    if len(known) < cores:
        return dict.fromkeys(features)
    return {key: _ids_of_feature(known, feature) for key, feature in features.items()}


def _ids_of_feature(batches: Sequence[Values], feature: Feature) -> RecordedIds | None:
    parts = [occurrences(batch, feature) for batch in batches]
    known = [part for part in parts if part is not None]
    return joined(known) if len(known) == len(parts) else None


def _joined(group: str, named: Values) -> Values:
    of_cores: dict[str, dict[int, Array]] = {name: {} for name in named}
    for name, array in named.items():
        whole, core = _name_and_core(name)
        of_cores.setdefault(whole, {})[core] = array
    return {
        name: _of_all(group, [parts[core] for core in sorted(parts)])
        for name, parts in of_cores.items()
        if parts
    }


def unused_gradients(step: RecordedStep) -> list[str]:
    gradients = step.values.get(GRADIENTS, {})
    known = {_name_and_core(name)[0] for name in gradients}
    activations = step.values.get(ACTIVATIONS, {})
    return [
        name for name in activations if name not in gradients and _name_and_core(name)[0] in known
    ]


def _name_and_core(name: str) -> tuple[str, int]:
    match = _OF_CORE.match(name)
    return (match[1], int(match[2])) if match else (name, 0)


def _of_all(group: str, parts: list[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    if group == LOSS or not parts[0].ndim:
        return np.mean(parts, 0, dtype=np.float64).astype(parts[0].dtype)
    return np.concatenate(parts)
