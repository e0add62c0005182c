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


def input_fn(params):
  return tf.data.Dataset.from_tensors(make_batch(params['batch_size'])).repeat()


def model_fn(features, labels, mode, params):
  del params
  # One number per sample; nothing here is random but the tables.
  net = sum(features[key] for key in COLUMNS)
  prediction = tf.reduce_sum(net, 1)
  loss = tf.losses.mean_squared_error(labels, prediction)
  if mode == tf_estimator.ModeKeys.EVAL:
    return tf_estimator.tpu.TPUEstimatorSpec(mode, loss=loss)
  optimizer = tf.train.GradientDescentOptimizer(0.1)
  if USE_TPU:
    optimizer = tf.tpu.CrossShardOptimizer(optimizer)
  return tf_estimator.tpu.TPUEstimatorSpec(
      mode, loss=loss,
      train_op=optimizer.minimize(loss, tf.train.get_or_create_global_step()))


def main(model_dir):
  estimator = tf_estimator.tpu.TPUEstimator(
      model_fn,
      use_tpu=USE_TPU,
      config=tf_estimator.tpu.RunConfig(
          model_dir=model_dir, tf_random_seed=1,
          tpu_config=tf_estimator.tpu.TPUConfig(iterations_per_loop=2, num_shards=2)),
      train_batch_size=8, eval_batch_size=8,
      embedding_config_spec=make_spec())
  estimator.train(input_fn, max_steps=4)
  print(json.dumps({'loss': float(estimator.evaluate(input_fn, steps=1)['loss'])}))


if __name__ == '__main__':
  tf.disable_v2_behavior()
  main(sys.argv[1])
