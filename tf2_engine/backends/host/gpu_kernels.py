"""A step on TensorFlow's ops for tables on a GPU.

On a GPU an op takes some microseconds before it computes anything, and an op that chooses the size
of its output makes the host wait. So tables with the same width and optimizer are updated together,
sequences and bags of the same width are summed together, and the ids of all features are checked
together. Nothing as large as a batch passes through the host: only numbers of rows come back from
the GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import batch
from tf2_engine.backends.host import kernels, update
from tf2_engine.backends.host.kernels import Raw, Read, Sent, TensorFlowKernels
from tf2_engine.backends.host.update import Contribution
from tf2_engine.backends.interface import Rates
from tf2_engine.batch import Occurrences
from tf2_engine.optimizers import Optimizer
from tf2_engine.row_sums import add_rows
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Op, Tensor


class _Group(NamedTuple):
    """What tables have in common that are updated together."""

    optimizer: Optimizer
    dim: int
    rate_tag: int | None


_Member = tuple[Table, list[Contribution]]
"""A table of a group, and the gradients of its features."""


class GpuKernels(TensorFlowKernels):
    """A step on as few of TensorFlow's ops as possible."""

    name = "TensorFlow's ops, on a GPU"
    queue_device = "GPU:0"

    def occurrences(self, pieces: Sequence[Raw]) -> list[Occurrences]:
        if self._plan.out_of_range_ids != "error":
            return super().occurrences(pieces)
        unchecked = [batch.occurrences(*piece, "unchecked") for piece in pieces]
        features = [feature for feature, _ in pieces]
        return batch.after_range_checks(features, unchecked)

    def look_up(self, pieces: Sequence[Read]) -> list[Tensor]:
        activations: dict[int, Tensor] = {}
        of_width: dict[int, list[int]] = {}
        for number, (feature, _, occurrences) in enumerate(pieces):
            if occurrences.cell is None:
                rows = self._tables[feature.table.name].gather(PARAMETERS, occurrences.ids)
                activations[number] = kernels.combine(feature, rows, occurrences)
            else:
                of_width.setdefault(feature.table.dim, []).append(number)
        for numbers in of_width.values():
            sums = self._sums([pieces[number] for number in numbers])
            for number, of_piece in zip(numbers, sums, strict=True):
                activations[number] = kernels.shaped(pieces[number].feature, of_piece)
        return [activations[number] for number in range(len(pieces))]

    def update(self, pieces: Sequence[Sent], rates: Rates) -> list[Op]:
        ops: list[Op] = []
        groups: dict[_Group, list[_Member]] = {}
        for plan in self._plan.tables:
            table = self._tables[plan.name]
            per_core: list[list[Contribution]] = [[] for _ in range(self._plan.num_cores)]
            for feature, core, occurrences, gradient in pieces:
                if feature.table is plan:
                    per_core[core].append(kernels.contribution(feature, occurrences, gradient))
            if not any(per_core):
                continue
            if _updates_rows_once(table, len(per_core)):
                group = _Group(plan.optimizer, plan.dim, plan.rate_tag)
                flat = list(itertools.chain.from_iterable(per_core))
                groups.setdefault(group, []).append((table, flat))
            else:
                ops += update.update_table(table, per_core, kernels.rate_of(plan, rates))
        for members in groups.values():
            ops += _update_together(members, kernels.rate_of(members[0][0].plan, rates))
        return ops

    def _sums(self, pieces: Sequence[Read]) -> list[Tensor]:
        """The sums of cells, [num_cells, dim] float32 each, for pieces of the same width."""
        rows: list[Tensor] = []
        cells: list[Tensor] = []
        sizes: list[Tensor | int] = []
        for feature, _, occurrences in pieces:
            assert occurrences.cell is not None
            parameters = self._tables[feature.table.name].gather(PARAMETERS, occurrences.ids)
            of_piece = feature.table.activation(parameters)
            if occurrences.gain is not None:
                of_piece = occurrences.gain[:, None] * of_piece
            rows.append(of_piece)
            cells.append(occurrences.cell)
            sizes.append(occurrences.num_cells)
        if len(pieces) == 1:
            return [add_rows(rows[0], None, cells[0], sizes[0])]
        starts = list(itertools.accumulate(sizes, initial=0))
        into = tf.concat([cell + start for cell, start in zip(cells, starts, strict=False)], 0)
        sums = add_rows(tf.concat(rows, 0), None, into, starts[-1])
        sums_of_pieces: list[Tensor] = tf.split(
            sums, [size if isinstance(size, int) else tf.cast(size, tf.int32) for size in sizes]
        )
        return sums_of_pieces


def _updates_rows_once(table: Table, num_cores: int) -> bool:
    """Whether a step reads and writes each row with a gradient exactly once."""
    optimizer = table.plan.optimizer
    by_core = num_cores > 1 and not optimizer.use_gradient_accumulation
    return not (by_core or optimizer.updates_all_rows or table.num_shards > 1)


def _update_together(members: Sequence[_Member], lr: Tensor) -> list[Op]:
    """Applies one step to tables with the same width and optimizer.

    They are treated as one table, in which the rows of each table follow those of the one before.
    """
    tables = [table for table, _ in members]
    ends = list(itertools.accumulate(table.plan.rows for table in tables))
    moved = [
        each._replace(ids=each.ids + (end - table.plan.rows))
        for (table, of_table), end in zip(members, ends, strict=True)
        for each in of_table
    ]
    ids, total = update.sum_by_id(moved)
    # Distinct ids are in order of first occurrence, so the ids of a table are adjacent. They are
    # not sorted within a table, but a binary search for the end of its row numbers still finds
    # where its ids end.
    first = tf.searchsorted(ids, tf.constant([0, *ends], tf.int64))
    # One transfer to the host: these are the sizes of the tensors below.
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
