"""Prepares ids for the SparseCores, with ops that run on the host of a core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import soft_sparsecore
from tf2_engine.backends.sparsecore.stacks import FeatureInStack, Stack
from tf2_engine.batch import FeatureBatch, FlatBatch, by_cell, check_layout, read_unchecked
from tf2_engine.plan import FeaturePlan
from tf2_engine.sparsecore_limits import SparseCoreLimits
from tf2_engine.types import Tensor

MOST_MINIBATCHES = 64


class PackedIds(NamedTuple):
    """The ids of one stack on one core, as arguments of the ops that look up and update.

    Ids are grouped by sending and receiving SparseCore. The fields are the end of each group; for
    each id its sample, its row within the shard (all int32) and its gain (float32); and the number
    of minibatches. Elements after the last group are unused.
    """

    row_pointers: Tensor
    sorted_sample_ids: Tensor
    sorted_token_ids: Tensor
    sorted_gains: Tensor
    num_minibatches_per_physical_sparse_core: Tensor


class OnHost(NamedTuple):
    """Packed ids on the host, and the number of elements to copy to the device, scalar int32."""

    ids: PackedIds
    num_pointers: Tensor
    num_ids: Tensor


_Triples = tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]


def read(
    stacks: Sequence[Stack], limits: SparseCoreLimits, part: Sequence[FeatureBatch]
) -> dict[str, OnHost]:
    features = {
        feature.position: (stack, feature) for stack in stacks for feature in stack.features
    }
    # The ops are in stock's order: those of all features first, then those of all stacks.
    triples = {
        position: _triples(*features[position], read_unchecked(*part[position]))
        for position in sorted(features)
    }
    ordered = [
        _sort(stack, limits, [triples[feature.position] for feature in stack.features])
        for stack in stacks
    ]
    return {
        stack.name: _pack(stack, limits, of_stack)
        for stack, of_stack in zip(stacks, ordered, strict=True)
    }


def copy_to_device(on_host: Mapping[str, OnHost]) -> dict[str, PackedIds]:
    on_device = {}
    for name, (ids, num_pointers, num_ids) in on_host.items():
        tensors = tf.raw_ops.TPUCopyWithDynamicShape(
            tensors=ids[:4], unpadded_sizes=[num_pointers, *[num_ids] * 3]
        )
        copied: Sequence[Tensor] = tf.raw_ops.TPUAnnotateTensorsWithDynamicShape(tensors=tensors)
        minibatches = ids.num_minibatches_per_physical_sparse_core
        on_device[name] = PackedIds._make([*copied, minibatches])
    return on_device


def _triples(stack: Stack, feature: FeatureInStack, raw: FlatBatch) -> _Triples:
    raw = _by_activation(feature.plan, raw)
    weight = tf.ones_like(raw.ids, tf.float32) if raw.weight is None else raw.weight
    layout, cores = feature.layout, stack.sparse_cores
    index = tf.zeros([0], tf.int32) if raw.index is None else tf.cast(raw.index, tf.int32)
    outputs = tf.raw_ops.ConvertToListOfSparseCoreCooTensors(
        indices_or_row_splits=index,
        values=soft_sparsecore.as_int32(raw.ids),
        weights=tf.cast(weight, tf.float32),
        sample_count=feature.samples,
        num_sc_per_chip=cores.per_core,
        row_offset=feature.before,
        col_offset=layout.row_offset * cores.total,
        col_shift=layout.rotation,
        num_sc_shards=cores.total,
        stacked_table_sample_count=stack.samples,
        combiner=feature.plan.table.combiner,
    )
    soft_sparsecore.mark(outputs[0][0].op, layout.table, layout.rows, feature.plan.name)
    return tuple(outputs)


def _by_activation(feature: FeaturePlan, raw: FlatBatch) -> FlatBatch:
    per_row = check_layout(feature, raw)
    has_row_for_each = len(feature.output_shape) == 1 or (raw.kind == "ragged" and per_row == 1)
    return raw if raw.kind == "dense" or has_row_for_each else by_cell(feature, raw)


def _sort(
    stack: Stack, limits: SparseCoreLimits, features: Sequence[_Triples]
) -> list[Sequence[Tensor]]:
    cores = stack.sparse_cores
    return [
        tf.raw_ops.SortListOfSparseCoreCooTensors(
            row_ids_list=[rows[core] for rows, _, _ in features],
            col_ids_list=[columns[core] for _, columns, _ in features],
            gains_list=[gains[core] for _, _, gains in features],
            sample_count_list=[feature.samples // cores.per_core for feature in stack.features],
            col_offset_list=[f.layout.row_offset * cores.total for f in stack.features],
            num_sc_per_chip=cores.per_core,
            **limits.of_stack(stack.name),
            **_of_stack(stack),
        )
        for core in range(cores.per_core)
    ]


def _pack(stack: Stack, limits: SparseCoreLimits, ordered: Sequence[Sequence[Tensor]]) -> OnHost:
    samples, tokens, gains, ends = zip(*ordered, strict=True)
    packed = tf.raw_ops.ConvertToSparseCoreCsrWrappedCooTensor(
        sorted_row_ids_list=samples,
        sorted_col_ids_list=tokens,
        sorted_gains_list=gains,
        id_counts_list=ends,
        splits=tf.constant(0, tf.int64),
        sample_count_per_sc=stack.samples // stack.sparse_cores.per_core,
        max_minibatches_per_sc=MOST_MINIBATCHES,
        max_ids_per_chip_per_sample=limits.max_ids_per_chip_per_sample,
        allow_id_dropping=limits.allow_id_dropping,
        **_of_stack(stack),
    )
    ids = PackedIds._make([*packed[:4], packed.num_minibatches_per_sc])
    return OnHost(ids, packed.row_pointers_unpadded_size, packed.ids_unpadded_size)


def _of_stack(stack: Stack) -> dict[str, int | str]:
    return {
        "num_replica": stack.sparse_cores.cores,
        "table_vocab_size": stack.vocabulary,
        "feature_width": stack.dim,
        "table_name": stack.name,
    }
