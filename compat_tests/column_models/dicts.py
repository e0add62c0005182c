"""Config dicts: two tables, each with its own optimizer, on several hosts by mod."""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator as tf_estimator
from tensorflow.python.tpu import tpu_embedding

USE_TPU = True

COLUMNS = ['word', 'day']


def make_spec():
  """Returns what the program says of its embeddings."""
  return tf_estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_to_config_dict={
          'word': tpu_embedding.FeatureConfig('words'),
          'day': tpu_embedding.FeatureConfig('days'),
      },
      table_to_config_dict={
          'words': tpu_embedding.TableConfig(
              9, 4, optimization_parameters=tpu_embedding.MomentumParameters(0.1, momentum=0.9)),
          'days': tpu_embedding.TableConfig(7, 4, learning_rate=0.0, hot_id_replication=True),
      },
      optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
      partition_strategy='mod')


def make_batch(size):
  """Returns features and labels that are the same every time."""
  words = np.arange(2 * size).reshape([size, 2])
  features = {
      'word': tf.sparse.from_dense(words % 9),
      'day': tf.sparse.from_dense(words[:, :1] % 6 + 1),
  }
  return features, tf.cast(tf.range(size) % 3, tf.float32)
