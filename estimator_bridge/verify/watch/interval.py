"""What a job did from one look at its variables to the next."""

from __future__ import annotations

import dataclasses

from estimator_bridge.verify.judge import lookups
from estimator_bridge.verify.judge.lookups import RecordedIds
from estimator_bridge.verify.judge.shadow import StepInputs
from estimator_bridge.verify.record.recording import (
    GRADIENTS,
    VARIABLES,
    Step,
    TableDescription,
    Values,
)


@dataclasses.dataclass(frozen=True)
class Interval:
    """The steps between two looks, mostly one.

    Attributes:
        position: of the first step, from 0.
        before: the variables before it.
        steps: the last one has variables.
        batches: of the steps; None where one is not known.
    """

    position: int
    before: Values
    steps: list[Step]
    batches: list[Values | None]

    @property
    def after(self) -> Values:
        """The variables after the last step."""
        return self.steps[-1].values[VARIABLES]

    @property
    def number(self) -> int:
        """The global step after the last step."""
        return self.steps[-1].number

    def inputs(self, table: TableDescription) -> list[StepInputs] | None:
        """Returns what each step updates a table from; None where that is not known."""
        inputs = []
        for offset, (step, batch) in enumerate(zip(self.steps, self.batches, strict=True)):
            ids = ids_of(table, batch)
            if ids is None:
                return None
            gradients = step.values.get(GRADIENTS, {})
            inputs.append(StepInputs(self.position + offset, ids, gradients))
        return inputs


def ids_of(table: TableDescription, batch: Values | None) -> dict[str, RecordedIds] | None:
    """Returns the ids of a table's features in a batch; None where those of one are not known."""
    if batch is None:
        return None
    found = {}
    for key, feature in lookups.features_of([table]).items():
        occurrences = lookups.occurrences(batch, feature)
        if occurrences is None:
            return None
        found[key] = occurrences
    return found
