"""A set of kernels: what the host driver computes a step with, for the features given to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tf2_engine.batch import Occurrences, OccurrenceTensors, RawIds
from tf2_engine.plan import FeaturePlan, Plan
from tf2_engine.tables import Table
from tf2_engine.types import Op, Tensor

_Item = TypeVar("_Item")


class FeatureGradient(NamedTuple):
    """The gradient of one feature on one core, of the shape of its activation."""

    feature: FeaturePlan
    occurrences: Occurrences
    gradient: Tensor


class KernelSet(Protocol):
    """The three parts of a step, for features whose tables the set can update.

    All sets compute the same numbers on the same variables.

    Attributes:
        name: the ops that the set consists of, for messages.
    """

    name: str

    def occurrences(
        self, features: Sequence[FeaturePlan], raw: Sequence[RawIds], out_of_range: str
    ) -> list[Occurrences]:
        """Returns the occurrences of each of a core's features; see `batch.occurrences`."""

    def as_tensors(self, occurrences: Sequence[Occurrences]) -> list[OccurrenceTensors]:
        """Returns occurrences without None, as `look_up` and `update` take them from a queue.

        Args:
            occurrences: of each of a core's features.
        """

    def look_up(
        self,
        plan: Plan,
        tables: Mapping[str, Table],
        features: Sequence[FeaturePlan],
        per_core: Sequence[Sequence[Occurrences]],
    ) -> list[list[Tensor]]:
        """Returns activations per core and feature: [*output_shape, dim] float32.

        Args:
            features: the features to look up.
            per_core: for each core the occurrences of these features.
        """

    def update(
        self,
        plan: Plan,
        tables: Mapping[str, Table],
        per_core: Sequence[Sequence[FeatureGradient]],
        rates: Mapping[str, Tensor],
    ) -> list[Op]:
        """Applies one step to the tables of the features; returns the ops.

        Args:
            per_core: for each core the gradients of the same features, with all those of a table.
            rates: the learning rate of each table, scalar float32.
        """


class SplitKernels:
    """Two sets of kernels, each for some of a plan's features.

    Args:
        first, second: the sets.
        in_first: for each feature of the plan whether it belongs to the first set.
    """

    def __init__(self, first: KernelSet, second: KernelSet, in_first: Sequence[bool]) -> None:
        self.name = f"{first.name} and {second.name}"
        self._first, self._second = first, second
        self._in_first = in_first

    def occurrences(
        self, features: Sequence[FeaturePlan], raw: Sequence[RawIds], out_of_range: str
    ) -> list[Occurrences]:
        """Returns the occurrences of each of a core's features."""
        (first, second), (first_raw, second_raw) = self._split(features), self._split(raw)
        return self._joined(
            self._first.occurrences(first, first_raw, out_of_range),
            self._second.occurrences(second, second_raw, out_of_range),
        )

    def as_tensors(self, occurrences: Sequence[Occurrences]) -> list[OccurrenceTensors]:
        """Returns occurrences without None."""
        first, second = self._split(occurrences)
        return self._joined(self._first.as_tensors(first), self._second.as_tensors(second))

    def look_up(
        self,
        plan: Plan,
        tables: Mapping[str, Table],
        features: Sequence[FeaturePlan],
        per_core: Sequence[Sequence[Occurrences]],
    ) -> list[list[Tensor]]:
        """Returns activations per core and feature."""
        first, second = self._split(features)
        cores = [self._split(core) for core in per_core]
        return [
            self._joined(*core)
            for core in zip(
                self._first.look_up(plan, tables, first, [core[0] for core in cores]),
                self._second.look_up(plan, tables, second, [core[1] for core in cores]),
                strict=True,
            )
        ]

    def update(
        self,
        plan: Plan,
        tables: Mapping[str, Table],
        per_core: Sequence[Sequence[FeatureGradient]],
        rates: Mapping[str, Tensor],
    ) -> list[Op]:
        """Applies one step to the tables; returns the ops."""
        cores = [self._split(core) for core in per_core]
        return [
            *self._second.update(plan, tables, [core[1] for core in cores], rates),
            *self._first.update(plan, tables, [core[0] for core in cores], rates),
        ]

    def _split(self, values: Sequence[_Item]) -> tuple[list[_Item], list[_Item]]:
        """Returns the values of the features of either set."""
        split: tuple[list[_Item], list[_Item]] = [], []
        for value, in_first in zip(values, self._in_first, strict=True):
            split[0 if in_first else 1].append(value)
        return split

    def _joined(self, first: Sequence[_Item], second: Sequence[_Item]) -> list[_Item]:
        """Returns the values of either set in the order of the plan's features."""
        firsts, seconds = iter(first), iter(second)
        return [next(firsts if in_first else seconds) for in_first in self._in_first]
