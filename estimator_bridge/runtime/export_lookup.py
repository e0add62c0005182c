"""What makes an exported graph, which has no engine, see the embeddings that the engine gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.inputs import split_features
from estimator_bridge.translation.legacy_spec import LegacySpec
from estimator_bridge.translation.translate import translate
from tf2_engine.serving import cpu_embedding_lookup


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


def look_up_tables(features: Any, legacy: LegacySpec) -> dict[str, Any]:
    """Looks up the features of config dicts in ordinary variables named like their tables.

    Returns:
        The features, with activations in the place of ids.
    """
    (part,) = split_features(features, legacy, 1)
    spec = translate(
        legacy, training=False, batch_size=None, num_cores=1, step=tf.train.get_global_step
    ).engine_spec
    tables = {
        table.name: tf.get_variable(
            table.name,
            [table.vocabulary_size, table.dim],
            tf.float32,
            table.initializer,
            use_resource=True,
        )
        for table in spec.tables
    }
    return {**part.features, **cpu_embedding_lookup(part.ids, part.weights, tables, spec)}


def _cut(value: tf.SparseTensor, length: int) -> tf.SparseTensor:
    kept = tf.sparse.retain(value, value.indices[:, 1] < length)
    shape = value.dense_shape
    return tf.SparseTensor(
        kept.indices, kept.values, tf.concat([shape[:1], [length], shape[2:]], 0)
    )
