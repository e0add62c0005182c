"""The kernels that every device has: TensorFlow's own ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf2_engine import batch
from tf2_engine.backends.host import lookup
from tf2_engine.backends.host.kernels import FeatureGradient
from tf2_engine.backends.host.update import Contribution, update_table
from tf2_engine.batch import Occurrences, OccurrenceTensors, RawIds
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import Table
from tf2_engine.types import Op, Tensor


class TensorFlowKernels:
    """A step on TensorFlow's ops, for any table; see `KernelSet`."""

    name = "TensorFlow's ops"

    def occurrences(
        self, features: Sequence[FeaturePlan], raw: Sequence[RawIds], out_of_range: str
    ) -> list[Occurrences]:
        """Returns the occurrences of each of a core's features."""
        return [
            batch.occurrences(feature, ids, out_of_range)
            for feature, ids in zip(features, raw, strict=True)
        ]

    def as_tensors(self, occurrences: Sequence[Occurrences]) -> list[OccurrenceTensors]:
        """Returns occurrences with their cells and gains written out."""
        return [feature.explicit() for feature in occurrences]

    def look_up(
        self,
        plan: Plan,
        tables: Mapping[str, Table],
        features: Sequence[FeaturePlan],
        per_core: Sequence[Sequence[Occurrences]],
    ) -> list[list[Tensor]]:
        """Returns activations per core and feature."""
        return [
            [
                lookup.look_up(feature, tables[feature.table.name], occurrences)
                for feature, occurrences in zip(features, core, strict=True)
            ]
            for core in per_core
        ]

    def update(
        self,
        plan: Plan,
        tables: Mapping[str, Table],
        per_core: Sequence[Sequence[FeatureGradient]],
        rates: Mapping[str, Tensor],
    ) -> list[Op]:
        """Applies one step to the tables of the features; returns the ops."""
        trained = {sent.feature.table.name for sent in per_core[0]}
        ops: list[Op] = []
        for table in plan.tables:
            if table.name in trained:
                contributions = [_contributions(table, core) for core in per_core]
                ops += update_table(tables[table.name], contributions, rates[table.name])
        return ops


def _contributions(table: TablePlan, core: Sequence[FeatureGradient]) -> list[Contribution]:
    """Returns the contributions of a core's features to one table."""
    return [
        (sent.occurrences.ids, lookup.row_gradients(*sent))
        for sent in core
        if sent.feature.table is table
    ]
