"""Saves and restores an engine with the checkpoint keys and layout of stock's TPUEmbedding.

For a table "users" with Adagrad, `tf.train.Checkpoint(embedding=engine)` writes:

    embedding/users/.ATTRIBUTES/VARIABLE_VALUE                 [vocabulary_size, dim] float32
    embedding/users.Saccumulators/.ATTRIBUTES/VARIABLE_VALUE   the same shape, one per slot

Each entry is one tensor with rows in the order of ids, for any number of hosts. Stock and this
engine read each other's checkpoints.

If a checkpoint is restored before the engine is built, its values are read when the engine is
built. In a `tf.Graph`, the caller has to call `load` after the restoring ops have run. Outside a
graph, this call is only needed if a built engine has restored a checkpoint that an object of a
different class wrote, such as `TPUEmbeddingForServing`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import errors, sharding, tf_compat
from tf2_engine.graph_mode import building_graph, run_after, to_run
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Graph, Op, Tensor, Variable


class RetrieveOnce:
    """Retrieves the tables once per graph, with an op that all saving and restoring ops wait for.

    Outside a graph, the engine retrieves the tables before a checkpoint is written.
    """

    def __init__(self, retrieve: Callable[[], Op]) -> None:
        self._retrieve = retrieve
        self._names: weakref.WeakKeyDictionary[Graph, str] = weakref.WeakKeyDictionary()

    def __call__(self) -> Op:
        if not building_graph():
            return None
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._names:
            with tf.control_dependencies(None):
                op = self._retrieve()
                if op is None:
                    return None
                self._names[graph] = tf.group(op).name
        return graph.get_operation_by_name(self._names[graph])


def table_tensors(
    spec: EngineSpec, tables: Mapping[str, Table], wait_for: Callable[[], Op]
) -> dict[str, TableTensor]:
    return {
        table.name if variable == PARAMETERS else f"{table.name}/{variable}": TableTensor(
            f"Table {table.name!r}, {variable}",
            shards,
            table.vocabulary_size,
            tables[table.name].strategy,
            wait_for,
        )
        for table in spec.tables
        if table.name is not None
        for variable, shards in tables[table.name].variables.items()
    }


def exported_variables(tables: Mapping[str, Table]) -> dict[str, Variable]:
    """Maps names to the variables that hold the tables' parameters, for a SavedModel.

    Stock's SavedModel also contains slots, unless its TPUEmbedding has no optimizer.
    """
    return {
        name if table.num_shards == 1 else f"{name}/{number}": shard
        for name, table in tables.items()
        for number, shard in enumerate(table.variables[PARAMETERS])
    }


class TableTensor(tf_compat.SavedTensor):
    """The parameters or one slot of a table, saved as one tensor in the order of ids."""

    def __init__(
        self,
        label: str,
        shards: tuple[Variable, ...],
        rows: int,
        strategy: str,
        wait_for: Callable[[], Op],
    ) -> None:
        # If there are fewer rows than shards, each shard has one row, and only the first shards
        # contain rows of the vocabulary.
        self._shards = shards[:rows]
        self._label = label
        self._rows = rows
        self._strategy = strategy
        self._wait_for = wait_for

    def __repr__(self) -> str:
        return f"<TableTensor {self._label}, {len(self._shards)} shards>"

    def slices(self) -> list[Slice]:
        if len(self._shards) > 1 and self._strategy == "octaves":
            raise errors.InvalidInput(
                f'{self._label}: parameter servers hold its rows with layout="octaves". '
                'tf.train.Checkpoint cannot save rows in this layout. Use the layout "div".'
            )
        if len(self._shards) == 1 or self._strategy == "mod":
            return [Slice("", self._read_whole, self._shards[0].device)]
        parts = []
        for number, shard in enumerate(self._shards):
            rows, dim = shard.shape.as_list()
            info = tf.Variable.SaveSliceInfo(
                full_name="",
                full_shape=[self._rows, dim],
                var_offset=[sharding.first_row(number, self._rows, len(self._shards)), 0],
                var_shape=[rows, dim],
            )
            parts.append(Slice(info.spec, functools.partial(self._read, shard), shard.device))
        return parts

    def restore(self, values: Sequence[Tensor]) -> Op:
        if len(values) == 1:
            values = [self._checked(values[0])]
        if len(values) < len(self._shards):  # "mod"
            values = [values[0][first :: len(self._shards)] for first in range(len(self._shards))]
        # In a graph, a pending update is applied before the restore overwrites the values.
        with run_after([self._wait_for()]):
            assigned = [
                shard.assign(value, read_value=False)
                for shard, value in zip(self._shards, values, strict=True)
            ]
        return to_run(assigned)

    def snapshot(self, old: TableTensor | None) -> TableTensor:
        if old is None:
            with tf.device("/device:CPU:0"):
                copies = tuple(tf.Variable(shard, trainable=False) for shard in self._shards)
            return TableTensor(self._label, copies, self._rows, self._strategy, lambda: None)
        for copy, shard in zip(old._shards, self._shards, strict=True):
            copy.assign(shard)
        return old

    def _read(self, shard: Variable) -> Tensor:
        with run_after([self._wait_for()]):
            # By default TensorFlow copies a variable with sparse updates when it reads the
            # variable.
            return shard.read_value_no_copy()

    def _read_whole(self) -> Tensor:
        values = [self._read(shard) for shard in self._shards]
        if len(values) == 1:
            return values[0]
        # Takes a row from each shard in turn; the last round may be incomplete. (Ops that place
        # rows by id would need int32 ids.)
        rounds, extra = divmod(self._rows, len(values))
        even: Tensor = tf.stack([value[:rounds] for value in values], axis=1)
        even = tf.reshape(even, [rounds * len(values), values[0].shape.as_list()[1]])
        return tf.concat([even, *(value[rounds:] for value in values[:extra])], axis=0)

    def _checked(self, value: Tensor) -> Tensor:
        expected = [self._rows, self._shards[0].shape.as_list()[1]]
        if not value.shape.is_compatible_with(expected):
            raise errors.InvalidInput(
                f"{self._label}: the shape is {value.shape.as_list()} in the checkpoint, but the "
                f"engine needs {expected}. Use the vocabulary and dim of the checkpoint."
            )
        return tf.ensure_shape(value, expected)


class Slice(NamedTuple):
    """A part of a saved tensor; see `tf_compat.SavedTensor.slices`."""

    spec: str
    read: Callable[[], Tensor]
    device: str
