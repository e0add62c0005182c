"""A sequence, by stock's private modules, with stochastic gradient descent."""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.tpu import tpu_embedding
from tensorflow_estimator.python.estimator import model_fn as model_fn_lib
from tensorflow_estimator.python.estimator.tpu import tpu_config
from tensorflow_estimator.python.estimator.tpu import tpu_estimator

USE_TPU = True

COLUMNS = [
    tf.tpu.experimental.embedding_column(
        tf.feature_column.sequence_categorical_column_with_identity('word', 9),
        dimension=4, max_sequence_length=2),
]


def make_spec():
  """Returns what the program says of its embeddings."""
  return tpu_estimator.EmbeddingConfigSpec(
      feature_columns=COLUMNS,
      optimization_parameters=tpu_embedding.StochasticGradientDescentParameters(0.1))


def make_batch(size):
  """Returns features and labels that are the same every time."""
  features = {'word': tf.sparse.from_dense(np.arange(2 * size).reshape([size, 2]) % 9)}
  return features, tf.cast(tf.range(size) % 3, tf.float32)
