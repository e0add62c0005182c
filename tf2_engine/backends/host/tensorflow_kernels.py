"""The kernels that every device has: TensorFlow's own ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf2_engine import batch
from tf2_engine.backends.host import lookup
from tf2_engine.backends.host.kernels import KernelsOfPlan, Raw, Read, Sent
from tf2_engine.backends.host.update import update_table
from tf2_engine.batch import Occurrences, OccurrenceTensors
from tf2_engine.plan import FeaturePlan, TablePlan
from tf2_engine.types import Op, Tensor


class TensorFlowKernels(KernelsOfPlan):
    """A step on TensorFlow's ops, for any table."""

    name = "TensorFlow's ops"

    def occurrences(self, pieces: Sequence[Raw]) -> list[Occurrences]:
        return [batch.occurrences(*piece, self._plan.out_of_range_ids) for piece in pieces]

    def as_tensors(self, feature: FeaturePlan, occurrences: Occurrences) -> OccurrenceTensors:
        return occurrences.explicit()

    def look_up(self, pieces: Sequence[Read]) -> list[Tensor]:
        return [
            lookup.look_up(feature, self._tables[feature.table.name], occurrences)
            for feature, occurrences in pieces
        ]

    def update(self, pieces: Sequence[Sent], rates: Mapping[str, Tensor]) -> list[Op]:
        ops: list[Op] = []
        for table in self._plan.tables:
            of_table = [sent for sent in pieces if sent.feature.table is table]
            if of_table:
                ops += self._update(table, of_table, rates[table.name])
        return ops

    def _update(self, table: TablePlan, pieces: Sequence[Sent], rate: Tensor) -> list[Op]:
        contributions = [
            [
                (ids.ids, lookup.row_gradients(feature, ids, gradient))
                for feature, of_core, ids, gradient in pieces
                if of_core == core
            ]
            for core in range(self._plan.num_cores)
        ]
        return update_table(self._tables[table.name], contributions, rate)
