"""The forward pass: computes the activations of a stack, and splits them by feature."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf2_engine.backends.sparsecore.inputs import PackedIds
from tf2_engine.backends.sparsecore.stacks import Stack
from tf2_engine.sparsecore_limits import SparseCoreLimits
from tf2_engine.types import Tensor


def look_up(stack: Stack, limits: SparseCoreLimits, ids: PackedIds, parameters: Tensor) -> Tensor:
    """Looks up the activations of a stack on a core, [samples, padded dim] float32.

    The samples are in blocks, one per SparseCore. Each block contains a part of every feature.
    """
    quantization = stack.tables[0].quantization
    return tf.raw_ops.XlaSparseDenseMatmulWithStaticBufferSize(
        **ids._asdict(),
        embedding_table=parameters,
        input_size=stack.samples,
        quantization_config_low=quantization.lower if quantization else 0.0,
        quantization_config_high=quantization.upper if quantization else 0.0,
        quantization_config_num_buckets=quantization.num_buckets if quantization else 0,
        table_name=stack.name,
        **limits.of_stack(stack.name),
    )


def of_features(stack: Stack, activations: Tensor) -> dict[int, Tensor]:
    per_core = stack.sparse_cores.per_core
    blocks = tf.reshape(activations, [per_core, -1, stack.dim])
    return {
        feature.position: tf.reshape(
            blocks[
                :,
                feature.before // per_core : (feature.before + feature.samples) // per_core,
                : feature.plan.table.dim,
            ],
            [*feature.plan.output_shape, feature.plan.table.dim],
        )
        for feature in stack.features
    }


def of_stack(stack: Stack, gradients: Sequence[Tensor]) -> Tensor:
    per_core = stack.sparse_cores.per_core
    blocks = []
    for feature in stack.features:
        dim = feature.plan.table.dim
        part = tf.reshape(gradients[feature.position], [per_core, -1, dim])
        blocks.append(tf.pad(part, [[0, 0], [0, 0], [0, stack.dim - dim]]))
    return tf.reshape(tf.concat(blocks, 1), [stack.samples, stack.dim])
