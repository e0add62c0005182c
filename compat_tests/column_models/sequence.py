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


def input_fn(params):
  return tf.data.Dataset.from_tensors(make_batch(params['batch_size'])).repeat()


def model_fn(features, labels, mode, params):
  del params
  # One number per sample; nothing here is random but the tables.
  net = tf.reduce_sum(tf.keras.experimental.SequenceFeatures(COLUMNS)(features)[0], 1)
  prediction = tf.reduce_sum(net, 1)
  loss = tf.losses.mean_squared_error(labels, prediction)
  if mode == model_fn_lib.ModeKeys.EVAL:
    return tpu_estimator.TPUEstimatorSpec(mode, loss=loss)
  optimizer = tf.train.GradientDescentOptimizer(0.1)
  if USE_TPU:
    optimizer = tf.tpu.CrossShardOptimizer(optimizer)
  return tpu_estimator.TPUEstimatorSpec(
      mode, loss=loss,
      train_op=optimizer.minimize(loss, tf.train.get_or_create_global_step()))


def main(model_dir):
  estimator = tpu_estimator.TPUEstimator(
      model_fn,
      use_tpu=USE_TPU,
      config=tpu_config.RunConfig(
          model_dir=model_dir, tf_random_seed=1,
          tpu_config=tpu_config.TPUConfig(iterations_per_loop=2, num_shards=2)),
      train_batch_size=8, eval_batch_size=8,
      embedding_config_spec=make_spec())
  estimator.train(input_fn, max_steps=4)
  print(json.dumps({'loss': float(estimator.evaluate(input_fn, steps=1)['loss'])}))


if __name__ == '__main__':
  tf.disable_v2_behavior()
  main(sys.argv[1])
