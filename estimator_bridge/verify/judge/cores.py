"""Joins what several cores recorded of one step, and the batches that they shared."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from estimator_bridge.verify.judge import lookups
from estimator_bridge.verify.judge.lookups import Feature, RecordedIds
from estimator_bridge.verify.record.recording import LOSS, VARIABLES, Recording, Step, Values
from tf2_engine.types import Array

_OF_CORE = re.compile(r"(.*) \(core (\d+)\)$")


def joined_steps(recording: Recording) -> Iterator[Step]:
    """Yields the steps of a recording with one array for all cores.

    Activations and their gradients are those of the global batch; the loss is the mean.
    """
    for step in recording.steps():
        values = {
            group: named if group == VARIABLES else _joined(group, named)
            for group, named in step.values.items()
        }
        yield Step(step.number, values)


def ids_of_step(
    recording: Recording, position: int, cores: int, feature: Feature
) -> RecordedIds | None:
    """Returns a feature's ids in the global batch of a step, from 0; None if they are not known."""
    parts = [recording.batch(position, core, cores) for core in range(cores)]
    ids = [None if part is None else lookups.occurrences(part, feature) for part in parts]
    known = [each for each in ids if each is not None]
    return joined_ids(known) if len(known) == cores else None


def joined_ids(parts: list[RecordedIds]) -> RecordedIds:
    """Returns the occurrences of several batches as those of one."""
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
    """Returns arrays by the names that those of the first core have."""
    of_cores: dict[str, dict[int, Array]] = {name: {} for name in named}
    for name, array in named.items():
        match = _OF_CORE.match(name)
        whole, core = (match[1], int(match[2])) if match else (name, 0)
        of_cores.setdefault(whole, {})[core] = array
    return {
        name: _of_all(group, [parts[core] for core in sorted(parts)])
        for name, parts in of_cores.items()
        if parts
    }


def _of_all(group: str, parts: list[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    if group == LOSS or not parts[0].ndim:
        return np.mean(parts, 0, dtype=np.float64).astype(parts[0].dtype)
    return np.concatenate(parts)
