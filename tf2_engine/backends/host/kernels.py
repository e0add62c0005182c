"""Kernel sets, each of which computes the lookup and the update of the features it is given."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeVar

import tensorflow as tf

from tf2_engine import batch
from tf2_engine.backends.host.update import Contribution, update_table
from tf2_engine.backends.interface import PerCore, Rates
from tf2_engine.batch import Occurrences, OccurrenceTensors, RawIds
from tf2_engine.graph_mode import run_after
from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.row_sums import add_rows
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Op, Tensor

Raw = tuple[FeaturePlan, RawIds]
"""A feature and its ids on one core."""


class Read(NamedTuple):
    """The occurrences of one feature on one core."""

    feature: FeaturePlan
    core: int
    occurrences: Occurrences


class Sent(NamedTuple):
    """The gradient of one feature on one core, with the shape of its activation."""

    feature: FeaturePlan
    core: int
    occurrences: Occurrences
    gradient: Tensor


_Piece = TypeVar("_Piece", Raw, Read, Sent)
_Result = TypeVar("_Result")


class KernelSet(abc.ABC):
    """The parts of a step. All kernel sets compute the same numbers on the same variables.

    `name` says in messages which ops a set uses. Batches wait in memory of the `queue_device`.
    """

    name: str
    queue_device = "CPU:0"

    def on_core(self, core: int) -> AbstractContextManager[None]:
        """Places ops on the device of a core."""
        return nullcontext()

    def on_ids(self, core: int) -> AbstractContextManager[None]:
        """Places ops on the device that reads the ids of a core."""
        return self.on_core(core)

    def together(self, num_cores: int) -> Sequence[Sequence[int]]:
        """Groups the cores, in order, by the place where they are."""
        return [range(num_cores)]

    @abc.abstractmethod
    def occurrences(self, pieces: Sequence[Raw]) -> list[Occurrences]:
        """Reads the ids of one core, feature by feature; see `batch.occurrences`."""

    def occurrences_of_step(self, pieces: Sequence[Raw]) -> list[Occurrences]:
        """Reads the ids of a batch that this set looks up and updates in the same step.

        Ids may be outside the table here; `look_up` and `update` refuse them.
        """
        return self.occurrences(pieces)

    @abc.abstractmethod
    def as_tensors(self, feature: FeaturePlan, occurrences: Occurrences) -> OccurrenceTensors:
        """Converts occurrences to tensors for a queue, which cannot hold None."""

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        """Whether `as_tensors` may return row splits, of rank 2, in place of cells."""
        return False

    @abc.abstractmethod
    def look_up(self, pieces: Sequence[Read]) -> list[Tensor]:
        """Computes the activation of each piece, [*output_shape, dim] float32."""

    def reads(self, activations: PerCore) -> Sequence[Op]:
        """The ops that an update waits for: those that read rows, or later ones."""
        return tuple(tensor for core in activations for tensor in core)

    def after(self, ops: Sequence[Op]) -> AbstractContextManager[None]:
        """Makes an update that is built in the context wait for `ops`; see `reads`."""
        return run_after(ops)

    @abc.abstractmethod
    def update(self, pieces: Sequence[Sent], rates: Rates) -> list[Op]:
        """Applies one step to the tables of the features. For `rates` see `rate_of`.

        Every core has pieces of the same features: all features of a table.
        """


class TensorFlowKernels(KernelSet):
    """A step on TensorFlow's ops, for any table. Reads `tables` when it is called, not before."""

    name = "TensorFlow's ops"

    def __init__(self, plan: Plan, tables: Mapping[str, Table]) -> None:
        self._plan, self._tables = plan, tables

    def occurrences(self, pieces: Sequence[Raw]) -> list[Occurrences]:
        return [batch.occurrences(*piece, self._plan.out_of_range_ids) for piece in pieces]

    def as_tensors(self, feature: FeaturePlan, occurrences: Occurrences) -> OccurrenceTensors:
        return occurrences.explicit()

    def look_up(self, pieces: Sequence[Read]) -> list[Tensor]:
        return [
            look_up(feature, self._tables[feature.table.name], occurrences)
            for feature, _, occurrences in pieces
        ]

    def update(self, pieces: Sequence[Sent], rates: Rates) -> list[Op]:
        ops: list[Op] = []
        for table in self._plan.tables:
            contributions: list[list[Contribution]] = [[] for _ in range(self._plan.num_cores)]
            for feature, core, occurrences, gradient in pieces:
                if feature.table is table:
                    contributions[core].append(contribution(feature, occurrences, gradient))
            if any(contributions):
                rate = rate_of(table, rates)
                ops += update_table(self._tables[table.name], contributions, rate)
        return ops


def tables_of(plan: Plan, features: Sequence[FeaturePlan]) -> list[TablePlan]:
    """The tables of features, each once, in the order of the plan."""
    names = {feature.table.name for feature in features}
    return [table for table in plan.tables if table.name in names]


def rate_of(table: TablePlan, rates: Rates) -> Tensor:
    """The learning rate of a table, scalar float32. `rates` are the dynamic ones by tag."""
    if table.rate_tag is not None:
        return rates[table.rate_tag]
    return optimization_barrier(tf.constant(table.optimizer.learning_rate, tf.float32))


def rates_of(tables: Sequence[TablePlan], rates: Rates) -> list[Tensor]:
    """The learning rate of each table. Equal rates are the same tensor."""
    made: dict[object, Tensor] = {}
    for table in tables:
        if _rate(table) not in made:
            made[_rate(table)] = rate_of(table, rates)
    return [made[_rate(table)] for table in tables]


def _rate(table: TablePlan) -> object:
    return ("tag", table.rate_tag) if table.rate_tag is not None else table.optimizer.learning_rate


def look_up(feature: FeaturePlan, table: Table, of_core: Occurrences) -> Tensor:
    """Computes the activation of one feature on one core, [*output_shape, dim] float32."""
    if of_core.cell is None or of_core.gain is not None:
        return combine(feature, table.gather(PARAMETERS, of_core.ids), of_core)
    # Without gains, a row need not be copied for each of its occurrences.
    distinct, position = tf.unique(of_core.ids, out_idx=tf.int64)
    rows = feature.table.activation(table.gather(PARAMETERS, distinct))
    return shaped(feature, add_rows(rows, position, of_core.cell, of_core.num_cells))


def combine(feature: FeaturePlan, parameters: Tensor, of_core: Occurrences) -> Tensor:
    """Computes an activation from the parameters of each occurrence, [num_ids, dim]."""
    return shaped(feature, of_core.combine(feature.table.activation(parameters)))


def shaped(feature: FeaturePlan, cells: Tensor) -> Tensor:
    """Gives the sums of cells, [num_cells, dim], the shape of the feature's activation."""
    sizes = [-1 if size is None else size for size in feature.output_shape]
    activation = tf.reshape(cells, [*sizes, feature.table.dim])
    return tf.ensure_shape(activation, [*feature.output_shape, feature.table.dim])


def contribution(feature: FeaturePlan, of_core: Occurrences, gradient: Tensor) -> Contribution:
    """The gradients of the rows of one feature on one core."""
    if of_core.gain is not None:
        return Contribution(of_core.ids, row_gradients(feature, of_core, gradient))
    return Contribution(of_core.ids, tf.reshape(gradient, [-1, feature.table.dim]), of_core.cell)


def row_gradients(feature: FeaturePlan, of_core: Occurrences, gradient: Tensor) -> Tensor:
    """Computes gain times gradient for the row of each occurrence, [num_ids, dim] float32."""
    rows: Tensor = tf.reshape(gradient, [-1, feature.table.dim])
    if of_core.cell is not None:
        rows = tf.gather(rows, of_core.cell)
    return rows if of_core.gain is None else of_core.gain[:, None] * rows


class SplitKernels(KernelSet):
    """Two kernel sets. The first computes the tables named in `of_first`, the second the others."""

    def __init__(self, first: KernelSet, second: KernelSet, of_first: Set[str]) -> None:
        self.name = f"{first.name} and {second.name}"
        self._sets = first, second
        self._of_first = of_first

    def on_core(self, core: int) -> AbstractContextManager[None]:
        return self._sets[0].on_core(core)

    def on_ids(self, core: int) -> AbstractContextManager[None]:
        return self._sets[0].on_ids(core)

    def occurrences(self, pieces: Sequence[Raw]) -> list[Occurrences]:
        first, second = self._split(pieces)
        results = self._sets[0].occurrences(first), self._sets[1].occurrences(second)
        return self._joined(pieces, results)

    def as_tensors(self, feature: FeaturePlan, occurrences: Occurrences) -> OccurrenceTensors:
        return self._sets[self._set_of(feature)].as_tensors(feature, occurrences)

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        return self._sets[self._set_of(feature)].keeps_splits(feature)

    def look_up(self, pieces: Sequence[Read]) -> list[Tensor]:
        first, second = self._split(pieces)
        return self._joined(pieces, (self._sets[0].look_up(first), self._sets[1].look_up(second)))

    def update(self, pieces: Sequence[Sent], rates: Rates) -> list[Op]:
        first, second = self._split(pieces)
        return self._sets[1].update(second, rates) + self._sets[0].update(first, rates)

    def _set_of(self, feature: FeaturePlan) -> int:
        return 0 if feature.table.name in self._of_first else 1

    def _split(self, pieces: Sequence[_Piece]) -> list[list[_Piece]]:
        return [[piece for piece in pieces if self._set_of(piece[0]) == i] for i in (0, 1)]

    def _joined(
        self, pieces: Sequence[Raw | Read], results: tuple[list[_Result], list[_Result]]
    ) -> list[_Result]:
        by_set = iter(results[0]), iter(results[1])
        return [next(by_set[self._set_of(piece[0])]) for piece in pieces]
