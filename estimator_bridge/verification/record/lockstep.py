"""Gives a side in lockstep the variables of another recording after every recorded step."""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Iterator, Mapping

from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    SUMMED_ROWS,
    VARIABLES,
    Recording,
    SideDescription,
    Step,
    Values,
    parts_of_tables,
)
from estimator_bridge.verification.perturbation import ACTIVATION_ULPS, VARIABLE_ULPS, perturbed
from estimator_bridge.verification.record.capture import ROWS_OF_SLICES
from tf2_engine.types import Array


class Leader:
    """The variables of a recording, step by step, under the names of the following side."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._steps: Iterator[Step] = recording.steps()
        self._names: dict[str, str] = {}

    def describe_follower(self, side: SideDescription) -> None:
        of_follower = parts_of_tables(side["tables"])
        names = {part: name for name, part in of_follower.items()}
        theirs = parts_of_tables(self._recording.settings["tables"])
        self._names = {name: names[part] for name, part in theirs.items() if part in names}

    def state_after(self, number: int) -> Values:
        for step in self._steps:
            if step.number == number and VARIABLES in step.values:
                variables = step.values[VARIABLES]
                return {self._names.get(name, name): value for name, value in variables.items()}
            if step.number >= number:
                break
        return {}


class Perturbation:
    """A run of side A with changed last bits, which applies the gradients of side B.

    The change shows how far rounding may move loss and gradients; side B's gradients show what the
    model's optimizer should make of them. Without a side B it applies its own. A run that is not in
    lockstep is only changed at its start.
    """

    def __init__(self, gradients_of: Recording | None, *, is_free: bool) -> None:
        self._lock = threading.Lock()
        self._is_free = is_free
        self._of_step = functools.lru_cache(maxsize=2)(
            (lambda step: {}) if gradients_of is None else gradients_of.gradients
        )
        self.substituted: set[str] = set()
        self.ulps: dict[str, int] = {}

    def choose(self, side: SideDescription, trained: Collection[str]) -> None:
        rows = [table["variable"] for table in side["tables"]]
        has_activations = bool(rows) and side["use_tpu"]
        ulps = VARIABLE_ULPS if has_activations or self._is_free else ACTIVATION_ULPS
        self.ulps = dict.fromkeys([*trained, *(rows if self._is_free else [])], ulps)

    def state(self, values: Mapping[str, Array]) -> Values:
        return {n: perturbed(n, value, self.ulps.get(n, 0)) for n, value in values.items()}

    def substitute(self, number: int, group: str, name: str, value: Array, is_open: bool) -> Array:
        if self._is_free:
            return value
        if group == ACTIVATIONS:
            return perturbed(f"{name} {number}", value, ACTIVATION_ULPS)
        theirs = self._gradient(number, name, is_open) if group == GRADIENTS else None
        if theirs is None or theirs.dtype != value.dtype:
            return value
        if theirs.shape != value.shape and not is_open:
            return value
        self.substituted.add(name.removesuffix(ROWS_OF_SLICES))
        return theirs

    def _gradient(self, number: int, name: str, is_open: bool) -> Array | None:
        with self._lock:
            gradients = self._of_step(number)
        if name.endswith(ROWS_OF_SLICES):
            return gradients.get(name.removesuffix(ROWS_OF_SLICES) + SUMMED_ROWS)
        return gradients.get(name) if is_open == (name + SUMMED_ROWS in gradients) else None
