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


def input_fn(params):
  return tf.data.Dataset.from_tensors(make_batch(params['batch_size'])).repeat()


def model_fn(features, labels, mode, params):
  del params
  # One number per sample; nothing here is random but the tables.
  net = tf.keras.layers.DenseFeatures(COLUMNS)(features)
  prediction = tf.reduce_sum(net, 1)
  loss = tf.losses.mean_squared_error(labels, prediction)
  if mode == ModeKeys.EVAL:
    return TPUEstimatorSpec(mode, loss=loss)
  optimizer = tf.train.GradientDescentOptimizer(0.1)
  if USE_TPU:
    optimizer = tf.tpu.CrossShardOptimizer(optimizer)
  return TPUEstimatorSpec(
      mode, loss=loss,
      train_op=optimizer.minimize(loss, tf.train.get_or_create_global_step()))


def main(model_dir):
  estimator = TPUEstimator(
      model_fn,
      use_tpu=USE_TPU,
      config=RunConfig(
          model_dir=model_dir, tf_random_seed=1,
          tpu_config=TPUConfig(iterations_per_loop=2, num_shards=2)),
      train_batch_size=8, eval_batch_size=8,
      embedding_config_spec=make_spec())
  estimator.train(input_fn, max_steps=4)
  print(json.dumps({'loss': float(estimator.evaluate(input_fn, steps=1)['loss'])}))


if __name__ == '__main__':
  tf.disable_v2_behavior()
  main(sys.argv[1])
