"""Ages in buckets, crossed with words."""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator as tf_estimator

AGE = tf.feature_column.bucketized_column(tf.feature_column.numeric_column('age'), [18, 30, 50])
USE_TPU = False

COLUMNS = [
    tf.tpu.experimental.embedding_column(
        tf.feature_column.crossed_column([AGE, 'name'], 20), dimension=4, combiner='sum'),
]


def make_spec():
  """Returns what the program says of its embeddings."""
  return tf_estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=COLUMNS,
      optimization_parameters=tf.tpu.experimental.StochasticGradientDescentParameters(0.1))


def make_batch(size):
  """Returns features and labels that are the same every time."""
  features = {
      'age': tf.constant(np.linspace(10, 70, size).reshape([size, 1]), tf.float32),
      'name': tf.constant([['n%d' % (i % 5)] for i in range(size)]),
  }
  return features, tf.cast(tf.range(size) % 3, tf.float32)
