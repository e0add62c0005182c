"""Checkpoints of an engine, with the keys and the layout of stock's TPUEmbedding.

`tf.train.Checkpoint(embedding=engine)` writes, for a table "users" of Adagrad,

    embedding/users/.ATTRIBUTES/VARIABLE_VALUE                 [vocabulary_size, dim] float32
    embedding/users.Saccumulators/.ATTRIBUTES/VARIABLE_VALUE   the same shape, one per slot

each one tensor with its rows in the order of the ids: with several hosts and "div" in slices,
one per host; with "mod" put in order, which takes memory for up to two more copies of the tables
while a checkpoint is written or read. So neither the number of hosts nor the partition strategy is
part of a checkpoint, and stock reads ours as we read stock's.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf2_engine import errors, sharding, tf_compat
from tf2_engine.backends.interface import building_graph
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import PARAMETERS, Table


class Checkpointed(tf_compat.CheckpointedEmbedding):
    """An engine that can be put into a `tf.train.Checkpoint` and a SavedModel.

    Before a save the variables are brought up to date, after a restore the driver takes them over.
    A restore that comes before the engine is built is carried out when it is built. Two things are
    left to the caller: in a `tf.Graph`, to run `load` after the ops that restore; and to call
    `load` after a restore of what another class wrote, `TPUEmbeddingForServing` for instance,
    into an engine that is built.

    A SavedModel holds the parameters of the tables; slots, which serve no lookup, are left out
    (stock's holds them, unless its optimizer is None).
    """

    _tables: Mapping[str, Table]

    def retrieve(self) -> Any:
        """Brings the variables up to date."""
        raise NotImplementedError

    def load(self) -> Any:
        """Makes the driver take over the values of the variables."""
        raise NotImplementedError

    def _track_tables(self, spec: EngineSpec, tables: Mapping[str, Table]) -> None:
        """Makes the tables part of checkpoints; call it before the driver loads them."""
        self._retrieved_in: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        for table in spec.tables:
            assert table.name is not None
            for name, shards in tables[table.name].variables.items():
                tensor = TableTensor(
                    f"Table {table.name!r}, {name}",
                    shards,
                    table.vocabulary_size,
                    spec.partition_strategy,
                    self._retrieved,
                )
                self._track(table.name if name == PARAMETERS else f"{table.name}/{name}", tensor)

    def _before_save(self) -> None:
        if self._tables and not building_graph():
            self.retrieve()

    def _retrieved(self) -> Any:
        """Returns the op that all reads and writes of a graph's checkpoints wait for, else None."""
        if not self._tables or not building_graph():
            return None
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._retrieved_in:
            with tf.control_dependencies(None):
                self._retrieved_in[graph] = tf.group(self.retrieve()).name
        return graph.get_operation_by_name(self._retrieved_in[graph])

    def _after_restore(self) -> Any:
        return self.load() if self._tables else None

    def _exported(self) -> dict[str, tf.Variable]:
        exported = {}
        for name, table in self._tables.items():
            shards = table.variables[PARAMETERS]
            for number, shard in enumerate(shards):
                exported[name if len(shards) == 1 else f"{name}/{number}"] = shard
        return exported


class TableTensor(tf_compat.SavedTensor):
    """Parameters or a slot of one table, whatever its shards, as one tensor with rows by id.

    Rows beyond the vocabulary, which exist when there are more hosts than rows, are left out.

    Args:
        what: how messages name it.
        shards: the variables, each [rows of the shard, dim] float32.
        rows: the vocabulary.
        strategy: "div" or "mod": which shard holds which row.
        wait_for: returns the op after which the shards may be read and written in a graph.
    """

    def __init__(
        self,
        what: str,
        shards: tuple[tf.Variable, ...],
        rows: int,
        strategy: str,
        wait_for: Callable[[], Any],
    ) -> None:
        # With fewer rows than shards each shard holds one row: the first ones hold the vocabulary.
        self._shards = shards[:rows]
        self._what = what
        self._rows = rows
        self._strategy = strategy
        self._wait_for = wait_for

    def __repr__(self) -> str:
        return f"<TableTensor {self._what}, {len(self._shards)} shards>"

    def slices(self) -> list[Slice]:
        """Returns the parts to write and to read; see the base class."""
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

    def restore(self, values: list[Any]) -> Any:
        """Takes over the values of the parts; returns an op in a graph."""
        if len(values) == 1:
            whole = self._checked(values[0])
            values = [whole]
            if len(self._shards) > 1:
                values = [whole[number :: len(self._shards)] for number in range(len(self._shards))]
        # In a graph, an update that is pending is applied to what is about to be overwritten.
        with tf.control_dependencies(_ops(self._wait_for())):
            done = [
                shard.assign(value, read_value=False)
                for shard, value in zip(self._shards, values, strict=True)
            ]
        return tf.group(*done) if building_graph() else None

    def snapshot(self, old: Any) -> TableTensor:
        """Returns a copy on the host; see the base class."""
        if old is None:
            with tf.device("/device:CPU:0"):
                copies = tuple(tf.Variable(shard, trainable=False) for shard in self._shards)
            return TableTensor(self._what, copies, self._rows, self._strategy, lambda: None)
        for copy, shard in zip(old._shards, self._shards, strict=True):
            copy.assign(shard)
        return old

    def _read(self, shard: tf.Variable) -> Any:
        with tf.control_dependencies(_ops(self._wait_for())):
            # Variables with sparse updates are otherwise copied when they are read.
            return shard.read_value_no_copy()

    def _read_whole(self) -> Any:
        values = [self._read(shard) for shard in self._shards]
        if len(values) == 1:
            return values[0]
        # Row by row from each shard in turn; the last round may not go all the way. (No ids: the
        # ops that place rows by id take int32 ones only.)
        rounds, extra = divmod(self._rows, len(values))
        even = tf.stack([value[:rounds] for value in values], axis=1)
        even = tf.reshape(even, [rounds * len(values), values[0].shape[1]])
        return tf.concat([even, *(value[rounds:] for value in values[:extra])], axis=0)

    def _checked(self, value: Any) -> Any:
        wanted = [self._rows, self._shards[0].shape[1]]
        if not value.shape.is_compatible_with(wanted):
            raise errors.InvalidInput(
                f"{self._what}: the checkpoint holds {value.shape.as_list()}, the engine needs "
                f"{wanted}. Vocabulary and dim must be those of the checkpoint."
            )
        return tf.ensure_shape(value, wanted)


class Slice(NamedTuple):
    """A part of a saved tensor; see `tf_compat.SavedTensor.slices`."""

    spec: str
    read: Callable[[], Any]
    device: str


def _ops(done: Any) -> list[Any]:
    return [] if done is None else [done]
