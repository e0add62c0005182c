"""Strings by their hash, which only a CPU does, and names imported one by one."""

import json
import sys

import tensorflow.compat.v1 as tf
from tensorflow.compat.v1.estimator import ModeKeys
from tensorflow.compat.v1.tpu.experimental import AdagradParameters
from tensorflow_estimator.python.estimator.tpu.tpu_config import RunConfig, TPUConfig
from tensorflow_estimator.python.estimator.tpu.tpu_estimator import (
    EmbeddingConfigSpec,  # The third of a line in brackets.
    TPUEstimator,
    TPUEstimatorSpec,
)

USE_TPU = False

COLUMNS = [
    tf.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_hash_bucket('name', 9), dimension=4),
]


def make_spec():
  """Returns what the program says of its embeddings."""
  return EmbeddingConfigSpec(
      feature_columns=COLUMNS,
      optimization_parameters=AdagradParameters(0.1, use_gradient_accumulation=False))


def make_batch(size):
  """Returns features and labels that are the same every time."""
  names = ['n%d' % (i % 5) if i % 4 else '' for i in range(2 * size)]
  features = {'name': tf.reshape(tf.constant(names), [size, 2])}
  return features, tf.cast(tf.range(size) % 3, tf.float32)
