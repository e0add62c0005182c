"""Kernel sets: each implements lookups and updates with one kind of ops."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, TypeVar

import tensorflow as tf

from tf2_engine import batch
from tf2_engine.backends.host.update import RowGradients, update_table
from tf2_engine.backends.interface import Activations, Gradients, Rates
from tf2_engine.batch import Batch, FlatBatch, KernelColumns, Occurrences
from tf2_engine.graph_mode import run_after
from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.row_sums import add_rows
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Op, Tensor

OfFeature: TypeAlias = tuple[FeaturePlan, FlatBatch]

StepOccurrences: TypeAlias = Sequence[Sequence[Occurrences]]
"""The occurrences of a step: for each core, a list with one entry per feature."""

_Value = TypeVar("_Value")


def raw_occurrences(features: Sequence[OfFeature]) -> list[Occurrences]:
    return [Occurrences(feature, raw.ids, None, None, 0, raw=raw) for feature, raw in features]


class KernelSet(abc.ABC):
    """Implements a step with one kind of ops. All kernel sets agree, except in rounding powers."""

    name: str
    queue_device = "CPU:0"

    def on_core(self, core: int) -> AbstractContextManager[None]:
        return nullcontext()

    def on_ids(self, core: int) -> AbstractContextManager[None]:
        return self.on_core(core)

    def together(self, num_cores: int) -> Sequence[Sequence[int]]:
        return [range(num_cores)]

    @abc.abstractmethod
    def occurrences(self, features: Sequence[OfFeature]) -> list[Occurrences]: ...

    def reads_raw(self, batch: Batch) -> bool:
        """Whether lookups can read the `raw_occurrences` of this batch, without preparation."""
        return False

    def occurrences_of_step(self, features: Sequence[OfFeature]) -> list[Occurrences]:
        """Reads ids without checking them, because the lookup of the same step checks them."""
        return self.occurrences(features)

    @abc.abstractmethod
    def as_tensors(self, occurrences: Occurrences) -> KernelColumns:
        """Converts occurrences to tensors for a queue, which cannot hold None."""

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        """Whether `as_tensors` may return row splits, of rank 2, instead of a cell for each id."""
        return False

    @abc.abstractmethod
    def look_up(self, per_core: StepOccurrences) -> Activations: ...

    def check_batches(self) -> Op:
        """Raises an error that a GPU has found in an earlier batch, if there is one."""
        return None

    def reads(self, activations: Activations) -> Sequence[Op]:
        return tuple(tensor for core in activations for tensor in core)

    def after(self, ops: Sequence[Op]) -> AbstractContextManager[None]:
        return run_after(ops)

    @abc.abstractmethod
    def update(self, per_core: StepOccurrences, gradients: Gradients, rates: Rates) -> list[Op]: ...


class TensorFlowKernels(KernelSet):
    """Implements a step with TensorFlow's ops, for any table. `tables` may be filled later."""

    name = "TensorFlow's ops"

    def __init__(self, plan: Plan, tables: Mapping[str, Table]) -> None:
        self._plan, self._tables = plan, tables

    def occurrences(self, features: Sequence[OfFeature]) -> list[Occurrences]:
        return [batch.occurrences(*each, self._plan.out_of_range_ids) for each in features]

    def as_tensors(self, occurrences: Occurrences) -> KernelColumns:
        return occurrences.explicit()

    def look_up(self, per_core: StepOccurrences) -> Activations:
        return [
            [look_up(self._tables[one.feature.table.name], one) for one in core]
            for core in per_core
        ]

    def update(self, per_core: StepOccurrences, gradients: Gradients, rates: Rates) -> list[Op]:
        ops: list[Op] = []
        for table in self._plan.tables:
            of_rows = gradients_of_rows(table, per_core, gradients)
            if any(of_rows):
                ops += update_table(self._tables[table.name], of_rows, rate_of(table, rates))
        return ops


def tables_of(plan: Plan, features: Sequence[FeaturePlan]) -> list[TablePlan]:
    names = {feature.table.name for feature in features}
    return [table for table in plan.tables if table.name in names]


def rate_of(table: TablePlan, rates: Rates) -> Tensor:
    if table.rate_tag is not None:
        return rates[table.rate_tag]
    return optimization_barrier(tf.constant(table.optimizer.learning_rate, tf.float32))


def rates_of(tables: Sequence[TablePlan], rates: Rates) -> list[Tensor]:
    made: dict[object, Tensor] = {}
    for table in tables:
        if _rate(table) not in made:
            made[_rate(table)] = rate_of(table, rates)
    return [made[_rate(table)] for table in tables]


def _rate(table: TablePlan) -> object:
    return ("tag", table.rate_tag) if table.rate_tag is not None else table.optimizer.learning_rate


def look_up(table: Table, occurrences: Occurrences) -> Tensor:
    if occurrences.cell is None or occurrences.gain is not None:
        return combine(table.gather(PARAMETERS, occurrences.ids), occurrences)
    # Without gains, rows are summed without copying a row for each occurrence.
    distinct, position = tf.unique(occurrences.ids, out_idx=tf.int64)
    rows = occurrences.feature.table.activation(table.gather(PARAMETERS, distinct))
    sums = add_rows(rows, position, occurrences.cell, occurrences.num_cells)
    return shaped(occurrences.feature, sums)


def combine(parameters: Tensor, occurrences: Occurrences) -> Tensor:
    feature = occurrences.feature
    return shaped(feature, occurrences.combine(feature.table.activation(parameters)))


def shaped(feature: FeaturePlan, cells: Tensor) -> Tensor:
    sizes = [-1 if size is None else size for size in feature.output_shape]
    activation = tf.reshape(cells, [*sizes, feature.table.dim])
    return tf.ensure_shape(activation, [*feature.output_shape, feature.table.dim])


def gradients_of_rows(
    table: TablePlan, per_core: StepOccurrences, gradients: Gradients
) -> list[list[RowGradients]]:
    return [
        [
            gradients_of_feature(one, gradient)
            for one, gradient in zip(*of_core, strict=True)
            if one.feature.table is table
        ]
        for of_core in zip(per_core, gradients, strict=True)
    ]


def gradients_of_feature(occurrences: Occurrences, gradient: Tensor) -> RowGradients:
    if occurrences.gain is not None:
        return RowGradients(occurrences.ids, row_gradients(occurrences, gradient))
    rows = tf.reshape(gradient, [-1, occurrences.feature.table.dim])
    return RowGradients(occurrences.ids, rows, occurrences.cell)


def row_gradients(occurrences: Occurrences, gradient: Tensor) -> Tensor:
    rows: Tensor = tf.reshape(gradient, [-1, occurrences.feature.table.dim])
    if occurrences.cell is not None:
        rows = tf.gather(rows, occurrences.cell)
    return rows if occurrences.gain is None else occurrences.gain[:, None] * rows


def per_core_as(per_core: StepOccurrences, flat: Iterable[_Value]) -> list[list[_Value]]:
    values = iter(flat)
    return [[next(values) for _ in core] for core in per_core]


class SplitKernels(KernelSet):
    """Two kernel sets: the first for the tables in `of_first`, the second for the rest."""

    def __init__(self, first: KernelSet, second: KernelSet, of_first: Set[str]) -> None:
        self.name = f"{first.name} and {second.name}"
        self._sets = first, second
        self._of_first = of_first

    def on_core(self, core: int) -> AbstractContextManager[None]:
        return self._sets[0].on_core(core)

    def on_ids(self, core: int) -> AbstractContextManager[None]:
        return self._sets[0].on_ids(core)

    def occurrences(self, features: Sequence[OfFeature]) -> list[Occurrences]:
        first, second = (
            iter(
                kernels.occurrences([each for each in features if self._set_of(each[0]) == number])
            )
            for number, kernels in enumerate(self._sets)
        )
        return [next((first, second)[self._set_of(feature)]) for feature, _ in features]

    def as_tensors(self, occurrences: Occurrences) -> KernelColumns:
        return self._sets[self._set_of(occurrences.feature)].as_tensors(occurrences)

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        return self._sets[self._set_of(feature)].keeps_splits(feature)

    def look_up(self, per_core: StepOccurrences) -> Activations:
        first, second = (
            itertools.chain(*kernels.look_up(self._of_set(number, per_core, per_core)))
            for number, kernels in enumerate(self._sets)
        )
        return [
            [next((first, second)[self._set_of(one.feature)]) for one in core] for core in per_core
        ]

    def update(self, per_core: StepOccurrences, gradients: Gradients, rates: Rates) -> list[Op]:
        ops: list[Op] = []
        for number in (1, 0):
            occurrences = self._of_set(number, per_core, per_core)
            of_set = self._of_set(number, per_core, gradients)
            ops += self._sets[number].update(occurrences, of_set, rates)
        return ops

    def _set_of(self, feature: FeaturePlan) -> int:
        return 0 if feature.table.name in self._of_first else 1

    def _of_set(
        self, number: int, per_core: StepOccurrences, values: Sequence[Sequence[_Value]]
    ) -> list[list[_Value]]:
        return [
            [
                value
                for one, value in zip(*of_core, strict=True)
                if self._set_of(one.feature) == number
            ]
            for of_core in zip(per_core, values, strict=True)
        ]
