"""The stacks of a plan: which tables share a variable, and the order of the features in a stack."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf2_engine import errors, sparsecore_layout
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.sparsecore_layout import SparseCores, StackableTable, TableLayout
from tf2_engine.sparsecore_limits import SparseCoreLimits


@dataclasses.dataclass(frozen=True)
class FeatureInStack:
    """The place of a feature in its stack.

    `position` is the feature's index in the plan. `before` is the number of samples per core in the
    earlier features of the stack; each cell of an activation counts as one sample.
    """

    plan: FeaturePlan
    position: int
    layout: TableLayout
    samples: int
    before: int


@dataclasses.dataclass(frozen=True)
class Stack:
    """Tables of the same width and optimizer that share variables, in the order of rows there."""

    name: str
    tables: tuple[TablePlan, ...]
    layouts: tuple[TableLayout, ...]
    features: tuple[FeatureInStack, ...]

    @property
    def sparse_cores(self) -> SparseCores:
        return self.layouts[0].sparse_cores

    @property
    def samples(self) -> int:
        return sum(feature.samples for feature in self.features)

    @property
    def vocabulary(self) -> int:
        return self.layouts[0].stack_shape[0]

    @property
    def dim(self) -> int:
        return self.layouts[0].padded_dim


def stacks_of(plan: Plan, sparse_cores: SparseCores, limits: SparseCoreLimits) -> tuple[Stack, ...]:
    samples = [_samples(feature, sparse_cores.per_core) for feature in plan.features]
    first = plan.features[0].table.name
    layouts = sparsecore_layout.table_layouts(
        [
            StackableTable(
                table.name,
                table.vocabulary_size,
                table.dim,
                (table.optimizer, table.quantization),
                # As in stock, only the samples of the first feature count.
                samples[0] if table.name == first else 0,
                1 if table.name == first else 0,
            )
            for table in plan.tables
        ],
        sparse_cores,
        stacking=not limits.disable_table_stacking,
    )
    tables = {table.name: table for table in plan.tables}
    by_stack = sparsecore_layout.stacks_of(layouts.values())
    limits.check_stacks([*by_stack])
    return tuple(
        Stack(
            name,
            tuple(tables[layout.table] for layout in of_stack),
            of_stack,
            _features(plan, of_stack, samples),
        )
        for name, of_stack in by_stack.items()
    )


def _features(
    plan: Plan, layouts: Sequence[TableLayout], samples: Sequence[int]
) -> tuple[FeatureInStack, ...]:
    by_table = {layout.table: layout for layout in layouts}
    features, before = [], 0
    for position, feature in enumerate(plan.features):
        if feature.table.name in by_table:
            layout = by_table[feature.table.name]
            features.append(FeatureInStack(feature, position, layout, samples[position], before))
            before += samples[position]
    return tuple(features)


def _samples(feature: FeaturePlan, per_core: int) -> int:
    cells = feature.cells
    if cells is None or cells % per_core:
        more = (
            ""
            if cells is None
            else f" The next size that fits is {-(-cells // per_core) * per_core}."
        )
        raise errors.InvalidSpec(
            f"{feature.where}: its activation has {cells} samples on a core (output shape "
            f"{feature.output_shape}), but each of the {per_core} SparseCores of a core takes an "
            "equal part, so the number of samples must be known and a multiple of "
            f"{per_core}.{more} Change the batch size, or use driver='host'."
        )
    return cells
