"""The forward and the backward pass of a stack, each of which is one op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf2_engine.backends.sparsecore.inputs import PackedIds
from tf2_engine.backends.sparsecore.stacks import Stack
from tf2_engine.sparsecore_limits import SparseCoreLimits
from tf2_engine.tables import PARAMETERS
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


class OpRule(NamedTuple):
    """How to call the op of an optimizer.

    Attributes:
        op: the optimizer's name as it appears in the op's name.
        slots: maps our slot names to the op's slot names, in the order of the op's outputs.
        settings: maps the op's attributes to fields of the optimizer.
    """

    op: str
    slots: Mapping[str, str]
    settings: Mapping[str, str]


RULES = {
    "SGD": OpRule("Sgd", {}, {}),
    "Adagrad": OpRule("Adagrad", {"accumulators": "accumulator"}, {}),
    "AdagradMomentum": OpRule(
        "AdagradMomentum",
        {"accumulators": "accumulator", "momenta": "momenta"},
        {
            "use_nesterov": "use_nesterov",
            "exponent": "exponent",
            "beta1": "momentum",
            "beta2": "beta2",
            "epsilon": "epsilon",
        },
    ),
    "Adam": OpRule(
        "Adam",
        {"momenta": "momenta", "velocities": "velocity"},
        {
            "use_sum_inside_sqrt": "sum_inside_sqrt",
            "beta1": "beta_1",
            "beta2": "beta_2",
            "epsilon": "epsilon",
        },
    ),
    "FTRL": OpRule(
        "Ftrl",
        {"accumulators": "accumulator", "linears": "linear"},
        {
            "multiply_linear_by_learning_rate": "multiply_linear_by_learning_rate",
            "beta": "beta",
            "learning_rate_power": "learning_rate_power",
            "l1_regularization_strength": "l1_regularization_strength",
            "l2_regularization_strength": "l2_regularization_strength",
        },
    ),
}
"""Maps the class name of an optimizer to its op."""


def updated(
    stack: Stack,
    limits: SparseCoreLimits,
    ids: PackedIds,
    gradients: Tensor,
    rate: Tensor,
    variables: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Computes a core's part of the new parameters and of each new slot.

    Every row that was looked up is updated once, with the sum of its gradients over all cores. Then
    the weights are clipped, but not the slots. (Stock's TPUEmbeddingV2 does not clip.)
    """
    optimizer = stack.tables[0].optimizer
    rule = RULES[type(optimizer).__name__]
    low, high = optimizer.clip_weight_min, optimizer.clip_weight_max
    outputs = getattr(tf.raw_ops, f"XlaSparseDenseMatmulGradWith{rule.op}AndStaticBufferSize")(
        **ids._asdict(),
        activation_gradients=gradients,
        learning_rate=rate,
        embedding_table=variables[PARAMETERS],
        clip_weight_min=-np.inf if low is None else low,
        clip_weight_max=np.inf if high is None else high,
        table_name=stack.name,
        **limits.of_stack(stack.name),
        **{of_op: variables[slot] for slot, of_op in rule.slots.items()},
        **{of_op: getattr(optimizer, setting) for of_op, setting in rule.settings.items()},
    )
    parts = outputs if rule.slots else [outputs]
    return dict(zip((PARAMETERS, *rule.slots), parts, strict=True))
