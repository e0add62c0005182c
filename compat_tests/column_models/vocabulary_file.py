"""Words of a file, those outside of it left out, in a pipelined spec."""

import json
import os
import sys

import tensorflow.compat.v1 as tf

WORDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'words.txt')
USE_TPU = False

COLUMNS = [
    tf.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_vocabulary_file('name', WORDS), dimension=4),
]


def make_spec():
  """Returns what the program says of its embeddings."""
  return tf.estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=COLUMNS,
      optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
      pipeline_execution_with_tensor_core=True)


def make_batch(size):
  """Returns features and labels that are the same every time."""
  names = ['n%d' % (i % 5) if i % 4 else '' for i in range(2 * size)]
  features = {'name': tf.reshape(tf.constant(names), [size, 2])}
  return features, tf.cast(tf.range(size) % 3, tf.float32)
