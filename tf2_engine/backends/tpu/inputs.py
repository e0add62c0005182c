"""The ids of a batch, on their way from the hosts to the cores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.backends.interface import FeatureInput, StepInputs
from tf2_engine.backends.tpu import topology
from tf2_engine.batch import RawIds, read_unchecked, wrong_rank
from tf2_engine.plan import FeaturePlan, Plan
from tf2_engine.types import Op, Tensor

Reader = Callable[[], Sequence[RawIds]]
"""Reads the ids of one core. It is called where the host of that core does its work."""


def readers(plan: Plan, inputs: StepInputs, cores_per_replica: int | None) -> dict[int, Reader]:
    """Returns the function that reads the ids of a core, by the position of the core.

    The part of a replica is split over its cores. None is no split, and right inside
    `strategy.run`, where the device's own rewrite gives each core its part.
    """
    split = cores_per_replica if inputs.of_replicas else None
    return {
        position * (split or 1) + number: functools.partial(_read, plan, part, number, split)
        for position, part in inputs.parts.items()
        for number in range(split or 1)
    }


def enqueue(plan: Plan, read: Reader, ordinal: int, mode: Tensor | str, name: str | None) -> Op:
    """Enqueues the batch of one core; returns the op.

    `ordinal` is the number of the core among those of its host; -1 leaves it to the rewrite of the
    computation.
    """
    features = read()
    # Dense ids have no index, and weights may be missing: the op takes empty tensors for them.
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
    """Gives an op, or the op of a tensor, the attribute that pairs it with others of a batch."""
    if name is not None and not tf.executing_eagerly():
        tf_compat.name_embedding_op(op.op if isinstance(op, tf.Tensor) else op, name)


def mode_of(training: Tensor | bool) -> Tensor | str:
    """Returns the mode in which a batch is enqueued outside of `strategy.run`."""
    if isinstance(training, tf.Tensor):
        return either_mode(training)
    return "train" if training else "inference"


def either_mode(training: Tensor | bool) -> Tensor:
    """Returns the mode inside `strategy.run`, chosen from two constants.

    A rewrite of the graph, which may turn training into inference, looks for both constants, even
    when it is known which of them is chosen.
    """
    return tf.where(training, tf.constant("train"), tf.constant("inference"))


def _read(plan: Plan, part: Sequence[FeatureInput], number: int, count: int | None) -> list[RawIds]:
    return [
        read_unchecked(
            topology.part(feature.where, ids, number, count),
            topology.part(feature.where, weights, number, count),
        )
        for feature, (ids, weights) in zip(plan.features, part, strict=True)
    ]


def _index(feature: FeaturePlan, raw: RawIds) -> Tensor:
    """Returns row splits, or coordinates with one column more than the activation has axes."""
    assert raw.index is not None
    index: Tensor = tf.cast(raw.index, tf.int32)
    if raw.kind == "ragged":
        return index
    axes, rank = len(feature.output_shape), raw.index.shape.as_list()[-1]
    if rank == axes and feature.max_sequence_length:
        # A position of a sequence holds one id: a third column counts it.
        return tf.pad(index, [[0, 0], [0, 1]])
    if rank != axes + 1:
        raise wrong_rank(feature, rank)
    return index
