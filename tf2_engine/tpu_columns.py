"""Makes TPU embedding columns in TensorFlow 2 read activations instead of creating tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.types import Tensor


@contextlib.contextmanager
def reading_activations() -> Iterator[None]:
    if tf_compat.in_tpu_shard_context():
        yield
        return
    with tf_compat.tpu_shard_context(tf.distribute.get_strategy().num_replicas_in_sync):
        yield


def as_features(
    activations: Mapping[str, Tensor], lengths: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Converts the activations of features to the features that TPU columns read.

    `lengths` has the lengths of each sequence feature, [batch] int64. A length that exceeds the
    length of the activation is reduced to it.
    """
    features = dict(activations)
    for key, length in lengths.items():
        longest = tf.shape(activations[key], out_type=tf.int64)[1]
        features[tf_compat.sequence_length_key(key)] = tf.minimum(length, longest)
    return features
