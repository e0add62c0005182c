"""Stacks, which are variables that several tables share, and the transfer of rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors, sparsecore_layout, tf_compat
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.sparsecore_layout import SparseCores, StackableTable, TableLayout
from tf2_engine.sparsecore_limits import SparseCoreLimits
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import DType, Object, Op, Strategy, Tensor, Variable


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
    """Tables of the same width and optimizer that share variables, in the order of their rows."""

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


class DeviceTable:
    """The variables of a stack. A core stores the shards of its SparseCores one after the other.

    Parameters are padded with zeros, and slots with their initial values, because Adagrad would
    compute NaN from zeros.
    """

    def __init__(self, stack: Stack, strategy: Strategy, training: bool) -> None:
        self.stack = stack
        initial = {PARAMETERS: 0.0}
        if training:
            initial |= stack.tables[0].optimizer.slot_initial_values()
        self._initial = initial
        self.variables: dict[str, Variable] = {}
        creator = tf_compat.sharded_variable_creator(strategy)
        with tf.init_scope(), strategy.scope(), tf.variable_creator_scope(creator):
            for name, value in initial.items():
                self.variables[name] = tf.Variable(
                    functools.partial(
                        _filler(value), shape=stack.layouts[0].stack_shape, dtype=tf.float32
                    ),
                    shape=stack.layouts[0].stack_shape,
                    dtype=tf.float32,
                    trainable=False,
                    name=stack.name if name == PARAMETERS else f"{stack.name}/{name}",
                )

    def load(self, tables: Mapping[str, Table]) -> list[Op]:
        ops = []
        for name, variable in self.variables.items():
            shards = [
                self._shards(layout, tables[layout.table], name) for layout in self.stack.layouts
            ]
            parts = tf.split(tf.concat(shards, 1), len(variable.values))
            for part, of_core in zip(parts, variable.values, strict=True):
                ops.append(of_core.assign(tf.reshape(part, of_core.shape), read_value=False))
        return ops

    def retrieve(self, tables: Mapping[str, Table]) -> list[Op]:
        ops = []
        for name, variable in self.variables.items():
            cores = self.stack.sparse_cores
            parts = [
                tf.reshape(of_core.read_value(), [cores.per_core, -1, self.stack.dim])
                for of_core in variable.values
            ]
            shards = tf.concat(parts, 0)
            for layout in self.stack.layouts:
                table = tables[layout.table]
                if name in table.variables:
                    ops += table.scatter({name: _rows(layout, shards)}, _ids(layout))
        return ops

    def _shards(self, layout: TableLayout, table: Table, name: str) -> Tensor:
        if name in table.variables:
            rows = table.gather(name, _ids(layout))
        else:
            rows = tf.fill([layout.rows, layout.dim], self._initial[name])
        padding = [[0, layout.padded_rows - layout.rows], [0, layout.padded_dim - layout.dim]]
        rows = tf.pad(rows, padding, constant_values=self._initial[name])
        by_shard = tf.reshape(rows, [-1, layout.sparse_cores.total, layout.padded_dim])
        return tf.roll(tf.transpose(by_shard, [1, 0, 2]), layout.rotation, 0)


def _rows(layout: TableLayout, shards: Tensor) -> Tensor:
    of_table = shards[:, layout.row_offset : layout.row_offset + layout.shard_rows]
    by_shard = tf.transpose(tf.roll(of_table, -layout.rotation, 0), [1, 0, 2])
    return tf.reshape(by_shard, [-1, layout.padded_dim])[: layout.rows, : layout.dim]


def _ids(layout: TableLayout) -> Tensor:
    return tf.range(layout.rows, dtype=tf.int64)


def _filler(value: float) -> Callable[..., Tensor]:
    def fill(shape: Object, dtype: DType) -> Tensor:
        return tf.fill(shape, tf.constant(value, dtype))

    return fill
