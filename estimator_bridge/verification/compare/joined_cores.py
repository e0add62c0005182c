"""Joins what several cores recorded in a step: values, and the parts of a batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    VARIABLES,
    Recording,
    Step,
    Values,
)
from estimator_bridge.verification.compare.arithmetic.lookups import (
    Feature,
    RecordedIds,
    occurrences,
)
from tf2_engine.types import Array

Ids = Mapping[str, RecordedIds | None]
"""The ids of features in a batch; None for features whose ids are unknown."""

_OF_CORE = re.compile(r"(.*) \(core (\d+)\)$")


def joined_step(step: Step) -> Step:
    groups = dict(step.values)
    unused = {name: np.zeros_like(groups[ACTIVATIONS][name]) for name in unused_gradients(step)}
    if unused:
        groups[GRADIENTS] = {**groups[GRADIENTS], **unused}
    values = {
        group: named if group == VARIABLES else _joined(group, named)
        for group, named in groups.items()
    }
    return Step(step.number, values)


def ids_of_step(
    recording: Recording, position: int, cores: int, features: Mapping[str, Feature]
) -> Ids:
    parts = [recording.batch(position, core, cores) for core in range(cores)]
    known = [part for part in parts if part is not None]
    if len(known) < cores:
        return dict.fromkeys(features)
    return {key: _ids_of_feature(known, feature) for key, feature in features.items()}


def _ids_of_feature(batches: Sequence[Values], feature: Feature) -> RecordedIds | None:
    parts = [occurrences(batch, feature) for batch in batches]
    known = [part for part in parts if part is not None]
    return _joined_ids(known) if len(known) == len(parts) else None


def _joined_ids(parts: list[RecordedIds]) -> RecordedIds:
    if len(parts) == 1:
        return parts[0]
    cells = [int(np.prod(part.shape)) for part in parts]
    offsets = np.cumsum([0, *cells[:-1]])
    return RecordedIds(
        np.concatenate([p.cells + offset for p, offset in zip(parts, offsets, strict=True)]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.weights for part in parts]),
        (sum(part.shape[0] for part in parts), *parts[0].shape[1:]),
    )


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


def unused_gradients(step: Step) -> list[str]:
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
