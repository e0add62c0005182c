"""TPU embedding columns in a model of TensorFlow 2: they read activations, and make no tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf2_engine import tf_compat


@contextlib.contextmanager
def reading_activations() -> Iterator[None]:
    """What is called inside takes columns of `tf.compat.v1.tpu.experimental` as on a TPU.

    `DenseFeatures` and `SequenceFeatures` over them find activations among the features then, as
    `as_features` makes them; off a TPU they would make tables of their own.
    """
    if tf_compat.in_tpu_shard_context():
        yield
        return
    with tf_compat.tpu_shard_context(tf.distribute.get_strategy().num_replicas_in_sync):
        yield


def as_features(activations: Mapping[str, Any], lengths: Mapping[str, Any]) -> dict[str, Any]:
    """Returns features as columns read them.

    Args:
        activations: by feature, what an engine returns.
        lengths: by sequence feature [batch] int64, as `preprocessing` makes them; what is behind
            the end of the activation does not count.
    """
    features = dict(activations)
    for key, length in lengths.items():
        longest = tf.shape(activations[key], out_type=tf.int64)[1]
        features[tf_compat.sequence_length_key(key)] = tf.minimum(length, longest)
    return features
