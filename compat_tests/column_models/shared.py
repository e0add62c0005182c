"""Two features that share a table, with Adam and a rate that falls."""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator as tf_estimator

USE_TPU = True

COLUMNS = tf.tpu.experimental.shared_embedding_columns(
    [tf.feature_column.categorical_column_with_identity(key, 9) for key in ('word', 'other')],
    dimension=4, combiner='sum',
    learning_rate_fn=lambda step: 0.1 / (1. + tf.cast(step, tf.float32)))


def make_spec():
  """Returns what the program says of its embeddings."""
  return tf_estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=COLUMNS,
      optimization_parameters=tf.tpu.experimental.AdamParameters(0.1))


def make_batch(size):
  """Returns features and labels that are the same every time."""
  words = np.arange(2 * size).reshape([size, 2])
  features = {
      'word': tf.sparse.from_dense(words % 9),
      'other': tf.sparse.from_dense((words + 5) % 8),
  }
  return features, tf.cast(tf.range(size) % 3, tf.float32)
