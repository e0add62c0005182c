"""Parameters and slots of the tables as resource variables."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf2_engine import initializers, sharding, slots, tf_compat
from tf2_engine.plan import Plan, TablePlan, shard_shapes
from tf2_engine.types import Initializer, Op, Tensor, Variable

PARAMETERS = "parameters"

VariableFactory = Callable[
    [TablePlan, str, Sequence[tuple[int, int]], Initializer], Sequence[Variable]
]
"""Makes the shards of one variable: (table, "parameters" or a slot, shapes, initializer)."""


@dataclasses.dataclass(frozen=True)
class Table:
    """The variables of one table.

    Attributes:
        plan: the plan of the table.
        strategy: "div" or "mod": which shard holds which row.
        variables: for "parameters" and every slot the shards, each [rows of the shard, dim]
            float32.
    """

    plan: TablePlan
    strategy: str
    variables: Mapping[str, tuple[Variable, ...]]

    @property
    def num_shards(self) -> int:
        """The number of hosts over which the rows are spread."""
        return len(self.variables[PARAMETERS])

    def gather(self, name: str, ids: Tensor) -> Tensor:
        """Returns [num_ids, dim] float32: the row of each id in the variable `name`."""
        shards = self.variables[name]
        if len(shards) == 1:
            return tf.gather(shards[0], ids)
        return tf.compat.v1.nn.embedding_lookup(list(shards), ids, partition_strategy=self.strategy)

    def scatter(self, rows: Mapping[str, Tensor], ids: Tensor) -> list[Op]:
        """Overwrites rows; returns the ops.

        Args:
            rows: for every variable name [num_ids, dim] float32.
            ids: [num_ids] int64, distinct.
        """
        updates = []
        for shard in range(self.num_shards):
            local_rows, *parts = self._on_shard(shard, ids, *rows.values())
            updates += [
                self.variables[name][shard].scatter_update(tf.IndexedSlices(part, local_rows))
                for name, part in zip(rows, parts, strict=True)
            ]
        return updates

    def spread(self, ids: Tensor, rows: Tensor, shard: int) -> Tensor:
        """Returns a dense [rows of the shard, dim] float32 with `rows` at their ids, else zeros."""
        shape = tf.constant(self.variables[PARAMETERS][shard].shape.as_list(), tf.int64)
        local_rows, rows = self._on_shard(shard, ids, rows)
        return tf.scatter_nd(local_rows[:, None], rows, shape)

    def core_of(self, ids: Tensor, num_cores: int) -> Tensor:
        """Returns the core that owns each row: the local row modulo the cores of its host."""
        cores_per_host = num_cores // self.num_shards
        shard, local_row = self._place(ids)
        return shard * cores_per_host + local_row % cores_per_host

    def _on_shard(self, shard: int, ids: Tensor, *rows: Tensor) -> list[Tensor]:
        """Returns the local rows of the ids that a shard holds, and of each of `rows` its part."""
        if self.num_shards == 1:
            return [ids, *rows]
        shard_of_id, local_rows = self._place(ids)
        positions = tf.where(tf.equal(shard_of_id, shard))[:, 0]
        return [tf.gather(values, positions) for values in (local_rows, *rows)]

    def _place(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the shard of each id, and the row inside of it."""
        if self.num_shards == 1:
            return tf.zeros_like(ids), ids
        rows = self.plan.rows
        shard = sharding.shard_of(ids, rows, self.num_shards, self.strategy, tf.maximum)
        if self.strategy == "mod":
            return shard, ids // self.num_shards
        first_rows = [sharding.first_row(n, rows, self.num_shards) for n in range(self.num_shards)]
        return shard, ids - tf.gather(tf.constant(first_rows, tf.int64), shard)


def create_tables(plan: Plan, factory: VariableFactory | None = None) -> dict[str, Table]:
    """Makes the variables of every table; slots only when the plan is for training.

    Args:
        factory: makes the variables; the default makes `tf.Variable`s named `<table>_<shard>` and
            `<table>/<slot>_<shard>`.
    """
    return {table.name: _create(plan, table, factory or _plain_variables) for table in plan.tables}


def _create(plan: Plan, table: TablePlan, factory: VariableFactory) -> Table:
    shapes = shard_shapes(table, plan.num_hosts)

    def make(name: str, initializer: Initializer) -> tuple[Variable, ...]:
        return tuple(factory(table, name, shapes, initializer))

    variables = {PARAMETERS: make(PARAMETERS, _initializer(plan, table))}
    if plan.training and table.optimizer.slot_variable_creation_fn is not None:
        variables |= slots.created_by_user(table, variables[PARAMETERS], make)
    elif plan.training:
        for slot, value in table.optimizer.slot_initial_values().items():
            variables[slot] = make(slot, initializers.filled(value))
    return Table(table, plan.partition_strategy, variables)


def _initializer(plan: Plan, table: TablePlan) -> Initializer:
    initializer = table.initializer or default_initializer(table.dim)
    if not initializers.takes_shard_info(initializer):
        return initializer
    whole = (table.vocabulary_size, table.dim)
    return initializers.ByShard(
        initializer, table.name, whole, plan.num_hosts, plan.partition_strategy
    )


def default_initializer(dim: int) -> Initializer:
    """Returns a truncated normal of standard deviation 1 / sqrt(dim), stock's default."""
    return tf.compat.v1.truncated_normal_initializer(mean=0.0, stddev=1.0 / math.sqrt(dim))


def _plain_variables(
    table: TablePlan, name: str, shapes: Sequence[tuple[int, int]], initializer: Initializer
) -> list[Variable]:
    base = table.name if name == PARAMETERS else f"{table.name}/{name}"
    return [
        tf_compat.plain_variable(
            initial_value=functools.partial(
                initializers.initial_value, table.name, initializer, shard, shape
            ),
            trainable=False,
            dtype=tf.float32,
            name=f"{base}_{shard}",
        )
        for shard, shape in enumerate(shapes)
    ]
