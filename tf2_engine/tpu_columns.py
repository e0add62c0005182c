"""Lets TPU embedding columns read activations in a model of TensorFlow 2, and make no tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.types import Tensor


@contextlib.contextmanager
def reading_activations() -> Iterator[None]:
    """Makes columns of `tf.compat.v1.tpu.experimental` behave as on a TPU, in the context.

    `DenseFeatures` and `SequenceFeatures` over them read activations among the features then, as
    `as_features` returns them; off a TPU they would make tables of their own.
    """
    if tf_compat.in_tpu_shard_context():
        yield
        return
    with tf_compat.tpu_shard_context(tf.distribute.get_strategy().num_replicas_in_sync):
        yield


def as_features(
    activations: Mapping[str, Tensor], lengths: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns features as columns read them, from the activations of an engine, by feature.

    The lengths are those of sequence features, [batch] int64, as `preprocessing` makes them;
    positions beyond the end of the activation do not count.
    """
    features = dict(activations)
    for key, length in lengths.items():
        longest = tf.shape(activations[key], out_type=tf.int64)[1]
        features[tf_compat.sequence_length_key(key)] = tf.minimum(length, longest)
    return features
