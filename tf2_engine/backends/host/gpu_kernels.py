"""The kernel set for tables on a GPU if there are no native ops. It uses TensorFlow's ops.

The number of ops is kept small: tables with the same width and optimizer are updated together,
features of the same width are summed together, and all ids are checked together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import batch
from tf2_engine.backends.host import kernels, update
from tf2_engine.backends.host.kernels import OfFeature, StepOccurrences, TensorFlowKernels
from tf2_engine.backends.host.update import RowGradients
from tf2_engine.backends.interface import Activations, Gradients, Rates
from tf2_engine.batch import Occurrences
from tf2_engine.optimizers import Optimizer
from tf2_engine.row_sums import add_rows
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Op, Tensor


class _Group(NamedTuple):
    optimizer: Optimizer
    dim: int
    rate_tag: int | None


_Member = tuple[Table, list[RowGradients]]


class GpuKernels(TensorFlowKernels):
    """Implements a step with a small number of TensorFlow's ops."""

    name = "TensorFlow's ops, on a GPU"
    queue_device = "GPU:0"

    def occurrences(self, features: Sequence[OfFeature]) -> list[Occurrences]:
        if self._plan.out_of_range_ids != "error":
            return super().occurrences(features)
        return batch.after_range_checks(
            [batch.occurrences(*each, "unchecked") for each in features]
        )

    def look_up(self, per_core: StepOccurrences) -> Activations:
        flat = list(itertools.chain(*per_core))
        activations: dict[int, Tensor] = {}
        of_width: dict[int, list[int]] = {}
        for number, one in enumerate(flat):
            table = one.feature.table
            if one.cell is None:
                rows = self._tables[table.name].gather(PARAMETERS, one.ids)
                activations[number] = kernels.combine(rows, one)
            else:
                of_width.setdefault(table.dim, []).append(number)
        for numbers in of_width.values():
            sums = self._sums([flat[number] for number in numbers])
            for number, cells in zip(numbers, sums, strict=True):
                activations[number] = kernels.shaped(flat[number].feature, cells)
        return kernels.per_core_as(per_core, (activations[n] for n in range(len(flat))))

    def update(self, per_core: StepOccurrences, gradients: Gradients, rates: Rates) -> list[Op]:
        ops: list[Op] = []
        groups: dict[_Group, list[_Member]] = {}
        for plan in self._plan.tables:
            table = self._tables[plan.name]
            of_rows = kernels.gradients_of_rows(plan, per_core, gradients)
            if not any(of_rows):
                continue
            if _updates_rows_once(table, len(per_core)):
                group = _Group(plan.optimizer, plan.dim, plan.rate_tag)
                groups.setdefault(group, []).append((table, list(itertools.chain(*of_rows))))
            else:
                ops += update.update_table(table, of_rows, kernels.rate_of(plan, rates))
        for members in groups.values():
            ops += _update_together(members, kernels.rate_of(members[0][0].plan, rates))
        return ops

    def _sums(self, of_width: Sequence[Occurrences]) -> list[Tensor]:
        rows: list[Tensor] = []
        cells: list[Tensor] = []
        sizes: list[Tensor | int] = []
        for one in of_width:
            assert one.cell is not None
            table = one.feature.table
            activation = table.activation(self._tables[table.name].gather(PARAMETERS, one.ids))
            if one.gain is not None:
                activation = one.gain[:, None] * activation
            rows.append(activation)
            cells.append(one.cell)
            sizes.append(one.num_cells)
        if len(of_width) == 1:
            return [add_rows(rows[0], None, cells[0], sizes[0])]
        starts = list(itertools.accumulate(sizes, initial=0))
        into = tf.concat([cell + start for cell, start in zip(cells, starts, strict=False)], 0)
        sums = add_rows(tf.concat(rows, 0), None, into, starts[-1])
        by_feature: list[Tensor] = tf.split(
            sums, [size if isinstance(size, int) else tf.cast(size, tf.int32) for size in sizes]
        )
        return by_feature


def _updates_rows_once(table: Table, num_cores: int) -> bool:
    optimizer = table.plan.optimizer
    by_core = num_cores > 1 and not optimizer.use_gradient_accumulation
    return not (by_core or optimizer.updates_all_rows or table.num_shards > 1)


def _update_together(members: Sequence[_Member], lr: Tensor) -> list[Op]:
    tables = [table for table, _ in members]
    ends = list(itertools.accumulate(table.plan.rows for table in tables))
    moved = [
        each._replace(ids=each.ids + (end - table.plan.rows))
        for (table, of_table), end in zip(members, ends, strict=True)
        for each in of_table
    ]
    ids, total = update.sum_by_id(moved)
    # Distinct ids are in order of first occurrence, so the ids of a table are adjacent. They are
    # not sorted within a table, but each table has its own range of numbers, so a binary search for
    # the end of the range still finds the last id of the table.
    first = tf.searchsorted(ids, tf.constant([0, *ends], tf.int64))
    # All sizes of the tensors below need only one transfer to the host.
    at = tf.unstack(first)
    counts = [end - start for start, end in itertools.pairwise(at)]
    rows_of = [
        tf.slice(ids, [start], [count]) - (end - table.plan.rows)
        for table, start, count, end in zip(tables, at, counts, ends, strict=False)
    ]
    old = {
        name: tf.concat(
            [table.gather(name, rows) for table, rows in zip(tables, rows_of, strict=True)], 0
        )
        for name in tables[0].variables
    }
    with update.all_read(old):
        new = update.new_rows(tables[0].plan.optimizer, old, total, lr)
        parts = {name: tf.split(rows, counts) for name, rows in new.items()}
        return [
            op
            for number, (table, rows) in enumerate(zip(tables, rows_of, strict=True))
            for op in table.scatter({name: part[number] for name, part in parts.items()}, rows)
        ]
