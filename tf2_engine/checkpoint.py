"""Checkpoints of an engine, with the keys and the layout of stock's TPUEmbedding.

`tf.train.Checkpoint(embedding=engine)` writes, for a table "users" of Adagrad,

    embedding/users/.ATTRIBUTES/VARIABLE_VALUE                 [vocabulary_size, dim] float32
    embedding/users.Saccumulators/.ATTRIBUTES/VARIABLE_VALUE   the same shape, one per slot

each one tensor with its rows in the order of the ids: with several hosts and "div" in slices,
one per host; with "mod" put in order, which takes memory for up to two more copies of the tables
while a checkpoint is written or read. So neither the number of hosts nor the partition strategy is
part of a checkpoint, and stock reads ours as we read stock's.

Before a save an engine brings its variables up to date, after a restore its driver takes them over.
A restore that comes before the engine is built is carried out when it is built. Two things are left
to the caller: in a `tf.Graph`, to run `load` after the ops that restore; and to call `load` after a
restore of a checkpoint that another class wrote, `TPUEmbeddingForServing` for instance, into an
engine that is built.
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
    """Returns the op that all reads and writes of a graph's checkpoints wait for.

    It is what `retrieve` returns, which brings the variables up to date, and is made once per
    graph, unless there is nothing to retrieve yet. Outside of a graph there is none: then an engine
    retrieves before it is saved.
    """

    def __init__(self, retrieve: Callable[[], Op]) -> None:
        self._retrieve = retrieve
        self._names: weakref.WeakKeyDictionary[Graph, str] = weakref.WeakKeyDictionary()

    def __call__(self) -> Op:
        """Returns the op of the current graph, else None."""
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
    """Returns the tensors that a checkpoint holds of an engine's tables, by their names in it.

    In a graph the shards may be read and written after the op that `wait_for` returns.
    """
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
    """Returns the variables that a SavedModel holds of an engine: the parameters of its tables.

    Slots serve no lookup. (Stock's SavedModel holds them, unless its optimizer is None.)
    """
    return {
        name if table.num_shards == 1 else f"{name}/{number}": shard
        for name, table in tables.items()
        for number, shard in enumerate(table.variables[PARAMETERS])
    }


class TableTensor(tf_compat.SavedTensor):
    """The parameters or a slot of one table, of any number of shards, as one tensor.

    Its rows are in the order of the ids; messages call it by its label. Rows beyond the vocabulary,
    which exist when there are more hosts than rows, are left out.
    """

    def __init__(
        self,
        label: str,
        shards: tuple[Variable, ...],
        rows: int,
        strategy: str,
        wait_for: Callable[[], Op],
    ) -> None:
        # With fewer rows than shards each shard holds one row: the first ones hold the vocabulary.
        self._shards = shards[:rows]
        self._label = label
        self._rows = rows
        self._strategy = strategy
        self._wait_for = wait_for

    def __repr__(self) -> str:
        return f"<TableTensor {self._label}, {len(self._shards)} shards>"

    def slices(self) -> list[Slice]:
        """Returns the parts to write and to read."""
        if len(self._shards) > 1 and self._strategy == "octaves":
            raise errors.InvalidInput(
                f"{self._label}: rows that are spread over parameter servers in octaves cannot be "
                'saved by tf.train.Checkpoint. Use the layout "div".'
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
        """Takes over the values of the parts; returns an op in a graph."""
        if len(values) == 1:
            values = [self._checked(values[0])]
        if len(values) < len(self._shards):  # "mod"
            values = [values[0][first :: len(self._shards)] for first in range(len(self._shards))]
        # In a graph, an update that is pending is applied to what is about to be overwritten.
        with run_after([self._wait_for()]):
            assigned = [
                shard.assign(value, read_value=False)
                for shard, value in zip(self._shards, values, strict=True)
            ]
        return to_run(assigned)

    def snapshot(self, old: TableTensor | None) -> TableTensor:
        """Returns a copy on the host."""
        if old is None:
            with tf.device("/device:CPU:0"):
                copies = tuple(tf.Variable(shard, trainable=False) for shard in self._shards)
            return TableTensor(self._label, copies, self._rows, self._strategy, lambda: None)
        for copy, shard in zip(old._shards, self._shards, strict=True):
            copy.assign(shard)
        return old

    def _read(self, shard: Variable) -> Tensor:
        with run_after([self._wait_for()]):
            # Variables with sparse updates are otherwise copied when they are read.
            return shard.read_value_no_copy()

    def _read_whole(self) -> Tensor:
        values = [self._read(shard) for shard in self._shards]
        if len(values) == 1:
            return values[0]
        # Row by row from each shard in turn; the last round may not go all the way. (No ids: the
        # ops that place rows by id take int32 ones only.)
        rounds, extra = divmod(self._rows, len(values))
        even: Tensor = tf.stack([value[:rounds] for value in values], axis=1)
        even = tf.reshape(even, [rounds * len(values), values[0].shape.as_list()[1]])
        return tf.concat([even, *(value[rounds:] for value in values[:extra])], axis=0)

    def _checked(self, value: Tensor) -> Tensor:
        expected = [self._rows, self._shards[0].shape.as_list()[1]]
        if not value.shape.is_compatible_with(expected):
            raise errors.InvalidInput(
                f"{self._label}: the checkpoint holds {value.shape.as_list()}, the engine needs "
                f"{expected}. Vocabulary and dim must be those of the checkpoint."
            )
        return tf.ensure_shape(value, expected)


class Slice(NamedTuple):
    """A part of a saved tensor; see `tf_compat.SavedTensor.slices`."""

    spec: str
    read: Callable[[], Tensor]
    device: str
