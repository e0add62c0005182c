"""What makes an exported graph, which has no engine, see the embeddings that the engine gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge.translation.legacy_spec import LegacySpec


def cut_sequences(features: Any, legacy: LegacySpec) -> Any:
    """Gives the ids and weights of sequences the length that they have with use_tpu=True.

    Ordinary columns look up sequences as long as they are; the engine cuts them at their table's
    `max_sequence_length`, and pads them to it. (Stock exports them uncut.)

    Args:
        features: of a receiver; SparseTensors [batch, length, ...] of ids or strings.

    Returns:
        The features, those of sequences [batch, max_sequence_length, ...].
    """
    if not isinstance(features, Mapping):
        return features
    cut = {}
    for feature in legacy.features:
        length = feature.max_sequence_length
        for key in (feature.key, feature.weight_key):
            value = features.get(key)
            if isinstance(value, tf.RaggedTensor):
                value = value.to_sparse()
            if length and isinstance(value, tf.SparseTensor):
                cut[key] = _cut(value, length)
    return {**features, **cut}


def _cut(value: tf.SparseTensor, length: int) -> tf.SparseTensor:
    kept = tf.sparse.retain(value, value.indices[:, 1] < length)
    shape = value.dense_shape
    return tf.SparseTensor(
        kept.indices, kept.values, tf.concat([shape[:1], [length], shape[2:]], 0)
    )
