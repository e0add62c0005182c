"""Moves data between hosts and a TPU: the ids of batches, and the rows and slots of tables."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.backends.tpu import topology
from tf2_engine.batch import Batch, FeatureBatch, FlatBatch, read_unchecked, wrong_rank
from tf2_engine.plan import FeaturePlan, Plan, TablePlan, shard_shapes
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Op, Tensor, Variable

ReadBatches = Callable[[], Sequence[FlatBatch]]
"""A function that reads the ids of one core, called in the device scope of that core's host."""

Transfer = Callable[[Plan, Mapping[str, Table], Sequence[str], bytes], list[Op]]
"""Transfers tables, given the plan, the tables, each host's device and the configuration proto."""


def readers(plan: Plan, batch: Batch, cores_per_replica: int | None) -> dict[int, ReadBatches]:
    """Maps each core's position to a function that reads the core's ids.

    If a replica has several cores, each function takes its core's part of the replica's batch.
    Inside `strategy.run` (`cores_per_replica=None`), the graph rewrite splits the batch instead.
    """
    split = cores_per_replica if batch.of_replicas else None
    return {
        position * (split or 1) + number: functools.partial(_read, plan, part, number, split)
        for position, part in batch.parts.items()
        for number in range(split or 1)
    }


def enqueue(
    plan: Plan, read: ReadBatches, ordinal: int, mode: Tensor | str, name: str | None
) -> Op:
    """Enqueues the batch of one core. If `ordinal` is -1, the graph rewrite chooses the core."""
    features = read()
    # The op takes empty tensors for the index of dense ids and for missing weights.
    no_index, no_weight = tf.zeros([0], tf.int32), tf.zeros([0], tf.float32)
    op = tf.raw_ops.EnqueueTPUEmbeddingArbitraryTensorBatch(
        sample_indices_or_row_splits=[
            no_index if raw.index is None else _index(feature, raw)
            for feature, raw in zip(plan.features, features, strict=True)
        ],
        embedding_indices=[raw.ids for raw in features],
        aggregation_weights=[no_weight if raw.weight is None else raw.weight for raw in features],
        mode_override=mode,
        device_ordinal=ordinal,
        combiners=[table.combiner for table in plan.tables],
    )
    set_name(op, name)
    return op


def set_name(op: Op, name: str | None) -> None:
    if name is not None and not tf.executing_eagerly():
        op = op.op if isinstance(op, tf.Tensor) else op
        tf_compat.set_attributes(op, {tf_compat.LAYER_ATTRIBUTE: name})


def mode_of(training: Tensor | bool, in_run: bool = False) -> Tensor | str:
    """Chooses the mode in which a batch is enqueued, "train" or "inference".

    Inside `strategy.run`, the graph always contains both modes as constants, and an op that selects
    one. The graph rewrite needs both constants to turn training into inference.
    """
    if in_run or isinstance(training, tf.Tensor):
        return tf.where(training, tf.constant("train"), tf.constant("inference"))
    return "train" if training else "inference"


def _read(
    plan: Plan, part: Sequence[FeatureBatch], number: int, count: int | None
) -> list[FlatBatch]:
    return [
        read_unchecked(
            topology.part(feature.where, ids, number, count),
            topology.part(feature.where, weights, number, count),
        )
        for feature, (ids, weights) in zip(plan.features, part, strict=True)
    ]


def _index(feature: FeaturePlan, raw: FlatBatch) -> Tensor:
    assert raw.index is not None
    index: Tensor = tf.cast(raw.index, tf.int32)
    if raw.kind == "ragged":
        return index
    axes, rank = len(feature.output_shape), raw.index.shape.as_list()[-1]
    if rank == axes and feature.max_sequence_length:
        # Each position of a sequence has one id, so the third column, its index, is 0.
        return tf.pad(index, [[0, 0], [0, 1]])
    if rank != axes + 1:
        raise wrong_rank(feature, rank)
    return index


def load(plan: Plan, tables: Mapping[str, Table], hosts: Sequence[str], config: bytes) -> list[Op]:
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
    ops = []
    for shard, table, attributes in _shards(plan, config):
        with tf.device(hosts[shard]):
            name = f"RetrieveTPUEmbedding{table.optimizer.op_name}Parameters"
            values = getattr(tf.raw_ops, name)(**attributes)
            # The op returns a tensor if there are no slots, otherwise a namedtuple.
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
        # The runtime reads the configuration of the first op only. The proto is large, so the other
        # ops get none. Otherwise the graph would contain tables × hosts copies of it.
        config = b""


def _values(
    plan: Plan, table: TablePlan, of_engine: Table, name: str, shard: int
) -> Tensor | Variable:
    if name not in of_engine.variables:
        # A plan without training has no slots, but the op still requires them.
        shape = shard_shapes(table, plan.num_hosts)[shard]
        return tf.fill(shape, table.optimizer.slot_initial_values()[name])
    shards = of_engine.variables[name]
    return shards[shard] if shard < len(shards) else tf.zeros_like(shards[0])
