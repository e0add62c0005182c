"""No combiner, and a multiplier of the gradients."""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf

if True:  # As programs do that choose between versions.
  from tensorflow.compat.v1 import estimator as tf_estimator

USE_TPU = True

COLUMNS = [
    tf.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_identity('word', 9, default_value=8),
        dimension=4, combiner=None),
]


def make_spec():
  """Returns what the program says of its embeddings."""
  return tf_estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=COLUMNS,
      optimization_parameters=tf.tpu.experimental.AdagradParameters(
          0.1, weight_decay_factor=0.0, clip_weight_max=3.0),
      experimental_gradient_multiplier_fn=lambda step: 0.5)


def make_batch(size):
  """Returns features and labels that are the same every time."""
  features = {'word': tf.sparse.from_dense(np.arange(2 * size).reshape([size, 2]) % 9)}
  return features, tf.cast(tf.range(size) % 3, tf.float32)
