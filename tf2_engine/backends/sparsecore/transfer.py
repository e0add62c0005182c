"""Copies rows between the engine's variables, one per table, and the stacks on the cores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.backends.sparsecore.stacks import Stack
from tf2_engine.sparsecore_layout import TableLayout
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import DType, Object, Op, Strategy, Tensor, Variable


class DeviceTable:
    """The variables of a stack.

    A core's variable contains the shards of its SparseCores one after the other. Padding is zero in
    the parameters. In slots, padding is the slot's initial value: with zeros, Adagrad would compute
    NaN in the padded columns.
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
