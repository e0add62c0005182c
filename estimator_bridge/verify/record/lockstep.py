"""Gives a side that runs in lockstep the variables of another recording.

After every recorded step a side that follows another one takes over its variables, so that the
next step of both begins from one state, and each step can be judged by itself.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Iterator, Mapping

from estimator_bridge.verify.perturbation import ACTIVATION_ULPS, VARIABLE_ULPS, perturbed
from estimator_bridge.verify.record.capture import ROWS_OF_SLICES
from estimator_bridge.verify.record.recording import (
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
from tf2_engine.types import Array


class Leader:
    """The variables of a recording, step by step, by the names of the side that follows.

    Args:
        recording: whose variables are taken over.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._steps: Iterator[Step] = recording.steps()
        self._names: dict[str, str] = {}

    def describe_follower(self, side: SideDescription) -> None:
        """Pairs tables and slots by their meaning: variables have other names on other engines."""
        of_follower = parts_of_tables(side["tables"])
        names = {part: name for name, part in of_follower.items()}
        theirs = parts_of_tables(self._recording.settings["tables"])
        self._names = {name: names[part] for name, part in theirs.items() if part in names}

    def state_after(self, number: int) -> Values:
        """Returns the variables after a step; {} where they were not recorded."""
        for step in self._steps:
            if step.number == number and VARIABLES in step.values:
                variables = step.values[VARIABLES]
                return {self._names.get(name, name): value for name, value in variables.items()}
            if step.number >= number:
                break
        return {}


class Perturbation:
    """A run of side A whose last bits are changed, and which applies the gradients of side B.

    What the change moves in the loss and in the gradients is how far rounding may; and what the
    model's own optimizer makes of the gradients of side B is compared with what side B made of
    them. A run that goes freely is changed at its start alone, and applies its own gradients.

    Args:
        gradients_of: side B; None is a run that goes freely.
    """

    def __init__(self, gradients_of: Recording | None) -> None:
        self._lock = threading.Lock()
        self._is_free = gradients_of is None
        self._of_step = functools.lru_cache(maxsize=2)(
            (lambda step: {}) if gradients_of is None else gradients_of.gradients
        )
        self.substituted: set[str] = set()
        self.ulps: dict[str, int] = {}

    def choose(self, side: SideDescription, trained: Collection[str]) -> None:
        """Chooses the variables to perturb.

        Args:
            side: without a device it has no activations to perturb, and variables are perturbed
                by as much instead.
            trained: names of the variables that the model's own optimizer trains.
        """
        rows = [table["variable"] for table in side["tables"]]
        has_activations = bool(rows) and side["use_tpu"]
        ulps = VARIABLE_ULPS if has_activations or self._is_free else ACTIVATION_ULPS
        self.ulps = dict.fromkeys([*trained, *(rows if self._is_free else [])], ulps)

    def state(self, values: Mapping[str, Array]) -> Values:
        """Returns variables with their last bits changed."""
        return {n: perturbed(n, value, self.ulps.get(n, 0)) for n, value in values.items()}

    def substitute(self, number: int, group: str, name: str, value: Array, is_open: bool) -> Array:
        """Returns the value that the training continues with in place of a captured one.

        Args:
            number: of the step, from 0.
            is_open: whether there may be more or fewer rows.
        """
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
        """Returns a gradient of side B; None if it has none of this form."""
        with self._lock:
            gradients = self._of_step(number)
        if name.endswith(ROWS_OF_SLICES):
            return gradients.get(name.removesuffix(ROWS_OF_SLICES) + SUMMED_ROWS)
        return gradients.get(name) if is_open == (name + SUMMED_ROWS in gradients) else None
