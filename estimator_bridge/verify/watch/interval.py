"""The steps of a watched job between two reads of its variables."""

from __future__ import annotations

import dataclasses

from estimator_bridge.verify.compare.arithmetic.lookups import RecordedIds
from estimator_bridge.verify.compare.arithmetic.shadow import ShadowInputs
from estimator_bridge.verify.compare.joined_cores import Ids
from estimator_bridge.verify.record import recording


@dataclasses.dataclass(frozen=True)
class Interval:
    """The steps between two reads, usually one.

    Attributes:
        position: of the first step, from 0.
        before: the variables before it.
        steps: only the last one has variables.
        ids: of every feature in the global batch of each step.
    """

    position: int
    before: recording.Values
    steps: list[recording.Step]
    ids: list[Ids]

    @property
    def after(self) -> recording.Values:
        return self.steps[-1].values[recording.VARIABLES]

    @property
    def number(self) -> int:
        return self.steps[-1].number

    def inputs(self, table: recording.TableDescription) -> list[ShadowInputs] | None:
        """Returns the inputs of a table's update in each step; None if unknown."""
        inputs = []
        for offset, step in enumerate(self.steps):
            ids = self.ids_of(table, offset)
            if len(ids) < len(table["features"]):
                return None
            gradients = step.values.get(recording.GRADIENTS, {})
            inputs.append(ShadowInputs(self.position + offset, ids, gradients))
        return inputs

    def ids_of(self, table: recording.TableDescription, step: int) -> dict[str, RecordedIds]:
        """Returns the known ids of a table's features in a step, from 0."""
        ids_of_features = {key: self.ids[step].get(key) for key in table["features"]}
        return {key: ids for key, ids in ids_of_features.items() if ids is not None}
