"""Prepares the features of an exported graph, which has no engine, as the engine reads them."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.input.feature_splitting import Notify
from estimator_bridge.runtime.step.plain_tables import look_up_dicts
from estimator_bridge.settings import render
from estimator_bridge.settings.detect import notes_of_spec
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.settings.row import EXPORT
from tf2_engine.types import Nest, SparseTensor


def features_for_export(mode: str, features: Nest, legacy: LegacySpec, notify: Notify) -> Nest:
    """Returns a receiver's features as the model was trained on them.

    Config dicts are looked up; for ordinary columns sequences are cut, see `cut_sequences`.

    Args:
        notify: called with the lines that deserve a warning.
    """
    if legacy.form == "dict":
        return look_up_dicts(mode, features, legacy, notify)
    for line in render.warnings(notes_of_spec(legacy), EXPORT):
        notify(line)
    return cut_sequences(features, legacy)


def cut_sequences(features: Nest, legacy: LegacySpec) -> Nest:
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


def _cut(value: SparseTensor, length: int) -> SparseTensor:
    kept = tf.sparse.retain(value, value.indices[:, 1] < length)
    shape = value.dense_shape
    return tf.SparseTensor(
        kept.indices, kept.values, tf.concat([shape[:1], [length], shape[2:]], 0)
    )
