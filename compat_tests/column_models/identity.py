"""One identity column, averaged, with Adagrad."""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf

USE_TPU = True

COLUMNS = [
    tf.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_identity('word', 9), dimension=4),
]


def make_spec():
  """Returns what the program says of its embeddings."""
  return tf.estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=COLUMNS,
      optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1))


def make_batch(size):
  """Returns features and labels that are the same every time."""
  features = {'word': tf.sparse.from_dense(np.arange(2 * size).reshape([size, 2]) % 9)}
  return features, tf.cast(tf.range(size) % 3, tf.float32)
