"""Ids with weights, and FTRL whose accumulator starts at zero."""

import json
import sys

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

USE_TPU = True

COLUMNS = [
    tf.tpu.experimental.embedding_column(
        tf.feature_column.weighted_categorical_column(
            tf.feature_column.categorical_column_with_identity('word', 9), 'weight'),
        dimension=4, combiner='sqrtn'),
]


def make_spec():
  """Returns what the program says of its embeddings."""
  return tf2.compat.v1.estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=COLUMNS,
      optimization_parameters=tf2.compat.v1.tpu.experimental.FtrlParameters(
          0.1, initial_accumulator_value=0.))


def make_batch(size):
  """Returns features and labels that are the same every time."""
  words = tf.sparse.from_dense(np.arange(2 * size).reshape([size, 2]) % 9)
  weights = tf.SparseTensor(
      words.indices, 0.5 + tf.cast(words.values, tf.float32), words.dense_shape)
  return {'word': words, 'weight': weights}, tf.cast(tf.range(size) % 3, tf.float32)
