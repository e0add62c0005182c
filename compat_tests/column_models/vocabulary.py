"""Words of a list, others in buckets behind it, and a limit that stock ignores."""

import json
import sys

import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator as tf_estimator

WORDS = tf.feature_column.categorical_column_with_vocabulary_list(
    'name', ['n0', 'n1', 'n2'], num_oov_buckets=2)
USE_TPU = False

COLUMNS = [tf.tpu.experimental.embedding_column(WORDS, dimension=4, combiner='sum')]


def make_spec():
  """Returns what the program says of its embeddings."""
  return tf_estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=COLUMNS,
      optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
      clipping_limit=2.0)


def make_batch(size):
  """Returns features and labels that are the same every time."""
  names = ['n%d' % (i % 5) if i % 4 else '' for i in range(2 * size)]
  features = {'name': tf.reshape(tf.constant(names), [size, 2])}
  return features, tf.cast(tf.range(size) % 3, tf.float32)
