"""Lets TPU embedding columns read activations in a TensorFlow 2 model, instead of making tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.types import Tensor


@contextlib.contextmanager
def reading_activations() -> Iterator[None]:
    """Makes columns of `tf.compat.v1.tpu.experimental` behave as on a TPU.

    `DenseFeatures` and `SequenceFeatures` with such columns then read activations among the
    features, as `as_features` returns them. Without this, they would make tables of their own
    unless on a TPU.
    """
    if tf_compat.in_tpu_shard_context():
        yield
        return
    with tf_compat.tpu_shard_context(tf.distribute.get_strategy().num_replicas_in_sync):
        yield


def as_features(
    activations: Mapping[str, Tensor], lengths: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Converts an engine's activations, by feature, to what columns read.

    `lengths` are those of sequence features, [batch] int64, as `preprocessing` makes them.
    Positions beyond the end of the activation do not count.
    """
    features = dict(activations)
    for key, length in lengths.items():
        longest = tf.shape(activations[key], out_type=tf.int64)[1]
        features[tf_compat.sequence_length_key(key)] = tf.minimum(length, longest)
    return features
