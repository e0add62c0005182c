"""Rows and slots between the variables, which are host memory, and the tables of the TPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from tf2_engine.plan import Plan, TablePlan, shard_shapes
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Op, Tensor, Variable

Transfer = Callable[[Plan, Mapping[str, Table], Sequence[str], bytes], list[Op]]
"""Takes the plan, the tables, the device of each host and the serialized configuration."""


def load(plan: Plan, tables: Mapping[str, Table], hosts: Sequence[str], config: bytes) -> list[Op]:
    """Copies every shard of every table, slots included, to the TPU; returns the ops."""
    ops = []
    for shard, table, attributes in _shards(plan, config):
        with tf.device(hosts[shard]):
            load_op = getattr(tf.raw_ops, f"LoadTPUEmbedding{table.optimizer.op_name}Parameters")
            values = {
                name: _values(plan, table, tables[table.name], name, shard)
                for name in (PARAMETERS, *table.optimizer.slot_names)
            }
            ops.append(load_op(**values, **attributes))
    return ops


def retrieve(
    plan: Plan, tables: Mapping[str, Table], hosts: Sequence[str], config: bytes
) -> list[Op]:
    """Copies every shard of every table, slots included, to the variables; returns the ops."""
    ops = []
    for shard, table, attributes in _shards(plan, config):
        with tf.device(hosts[shard]):
            name = f"RetrieveTPUEmbedding{table.optimizer.op_name}Parameters"
            values = getattr(tf.raw_ops, name)(**attributes)
            # Without slots it is a tensor, with them a namedtuple.
            by_name = values._asdict() if table.optimizer.slot_names else {PARAMETERS: values}
            for name, value in by_name.items():
                variables = tables[table.name].variables[name]
                if shard < len(variables):
                    ops.append(variables[shard].assign(value, read_value=False))
    return ops


def _shards(plan: Plan, config: bytes) -> Iterator[tuple[int, TablePlan, dict[str, object]]]:
    for shard, table in itertools.product(range(plan.num_hosts), plan.tables):
        attributes = {"table_name": table.name, "num_shards": plan.num_hosts, "shard_id": shard}
        yield shard, table, {**attributes, "config": config}
        # The proto is large and the runtime reads it from the first op only; repeating it would
        # cost tables × hosts copies in the graph.
        config = b""


def _values(
    plan: Plan, table: TablePlan, of_engine: Table, name: str, shard: int
) -> Tensor | Variable:
    """Returns the [rows, dim] float32 that the load op of a shard takes for one variable."""
    if name not in of_engine.variables:
        # A plan for lookups alone makes no slots, but the op takes them all the same.
        shape = shard_shapes(table, plan.num_hosts)[shard]
        return tf.fill(shape, table.optimizer.slot_initial_values()[name])
    shards = of_engine.variables[name]
    return shards[shard] if shard < len(shards) else tf.zeros_like(shards[0])
