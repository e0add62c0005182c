"""Ratings of wines, as a TPUEstimator program without feature columns.

Tables and features are two dicts, and the model_fn gets activations under the keys of the
features. Each table has an optimizer of its own: the tasters', of whom there are many with
few ratings each, learns with Adagrad; the grapes', which many wines share, with momentum and
a rate that falls; the words of the description, which carry weights, with Ftrl.

The data is drawn at random from a world in which all three have hidden vectors.

  python train.py --model_dir=DIR [--use_tpu] [--train_steps=300]
"""

from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import json
import os

from absl import app
from absl import flags
from absl import logging
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.tpu import tpu_embedding

FLAGS = flags.FLAGS

flags.DEFINE_string('model_dir', None, 'Folder for checkpoints and results.')
flags.DEFINE_bool('use_tpu', False, 'Run on a TPU.')
flags.DEFINE_string('tpu_name', None, 'Name of the TPU.')
flags.DEFINE_string('tpu_zone', None, 'Zone of the TPU.')
flags.DEFINE_string('gcp_project', None, 'Project of the TPU.')
flags.DEFINE_integer('num_shards', None, 'Cores of the TPU; by default, all it has.')
flags.DEFINE_string('iterations_per_loop', '50', 'Steps of a loop, or a time as 60s.')
flags.DEFINE_integer('train_steps', 300, 'Steps in all.')
flags.DEFINE_integer('eval_steps', 5, 'Batches of an evaluation.')
flags.DEFINE_integer('batch_size', 64, 'Samples per step, over all cores.')

NUM_TASTERS = 80
NUM_GRAPES = 20
NUM_WORDS = 60
MAX_GRAPES = 3
MAX_WORDS = 5
DIMENSION = 8


def wines(seed):
  """Yields wines for ever: features, padded with -1, and the rating."""
  world = np.random.RandomState(0)
  tasters, grapes, words = (
      world.normal(size=[count, 3]) for count in (NUM_TASTERS, NUM_GRAPES, NUM_WORDS))
  rng = np.random.RandomState(seed)
  while True:
    taster = rng.randint(NUM_TASTERS)
    blend = np.full([MAX_GRAPES], -1, np.int64)
    blend[:rng.randint(1, MAX_GRAPES + 1)] = rng.randint(NUM_GRAPES)
    said = np.full([MAX_WORDS], -1, np.int64)
    count = rng.randint(1, MAX_WORDS + 1)
    said[:count] = rng.randint(NUM_WORDS, size=count)
    weights = rng.uniform(0.5, 1.5, MAX_WORDS).astype(np.float32)
    wine = grapes[blend[0]] + np.dot(weights[:count], words[said[:count]]) / weights[:count].sum()
    yield {
        'taster': np.int64(taster),
        'grapes': blend,
        'words': said,
        'word_weights': weights,
    }, np.float32(np.dot(tasters[taster], wine))


TYPES = {'taster': tf.int64, 'grapes': tf.int64, 'words': tf.int64, 'word_weights': tf.float32}
SHAPES = {'taster': [], 'grapes': [MAX_GRAPES], 'words': [MAX_WORDS], 'word_weights': [MAX_WORDS]}


def to_sparse(padded):
  """Returns the features as the tables take them."""

  def without_padding(ids, values):
    indices = tf.where(ids >= 0)
    return tf.SparseTensor(
        indices, tf.gather_nd(values, indices), tf.shape(ids, out_type=tf.int64))

  return {
      'taster': without_padding(padded['taster'][:, tf.newaxis], padded['taster'][:, tf.newaxis]),
      'grapes': without_padding(padded['grapes'], padded['grapes']),
      'words': without_padding(padded['words'], padded['words']),
      'word_weights': without_padding(padded['words'], padded['word_weights']),
  }


def make_input_fn(seed, batches=None):
  """Returns an input_fn of so many batches; None is no end."""

  def input_fn(params):
    dataset = tf.data.Dataset.from_generator(
        lambda: wines(seed), (TYPES, tf.float32), (SHAPES, []))
    dataset = dataset.batch(params['batch_size'], drop_remainder=True)
    if batches is not None:
      dataset = dataset.take(batches)
    return dataset.map(lambda features, rating: (to_sparse(features), rating))

  return input_fn


def serving_input_receiver_fn():
  """Takes what `wines` yields."""
  padded = {key: tf.placeholder(TYPES[key], [None] + SHAPES[key], name=key) for key in TYPES}
  return tf.estimator.export.ServingInputReceiver(to_sparse(padded), padded)


def falling_rate(step):
  return tf.train.exponential_decay(0.1, step, 100, 0.9)


def create_configs():
  """Returns what the features are, and what the tables are."""
  start = tf.truncated_normal_initializer(stddev=0.3)
  tables = {
      'tasters': tpu_embedding.TableConfig(
          NUM_TASTERS, DIMENSION, start, combiner='sum',
          optimization_parameters=tpu_embedding.AdagradParameters(0.3)),
      'grapes': tpu_embedding.TableConfig(
          NUM_GRAPES, DIMENSION, start, combiner='mean', learning_rate_fn=falling_rate,
          optimization_parameters=tpu_embedding.MomentumParameters(0.1, momentum=0.5)),
      'words': tpu_embedding.TableConfig(
          NUM_WORDS, DIMENSION, start, combiner='sqrtn', learning_rate=0.2,
          optimization_parameters=tpu_embedding.FtrlParameters(0.1)),
  }
  features = {
      'taster': tpu_embedding.FeatureConfig('tasters'),
      'grapes': tpu_embedding.FeatureConfig('grapes'),
      'words': tpu_embedding.FeatureConfig('words', weight_key='word_weights'),
  }
  return features, tables


def model_fn(features, labels, mode, config, params):
  del config, params
  wine = tf.layers.dense(tf.concat([features['grapes'], features['words']], 1), DIMENSION)
  rating = tf.reduce_sum(wine * features['taster'], 1)
  if mode == tf.estimator.ModeKeys.PREDICT:
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, predictions={'rating': rating},
        export_outputs={
            'serving_default': tf.estimator.export.PredictOutput({'rating': rating}),
            'regression': tf.estimator.export.RegressionOutput(rating),
        })
  loss = tf.losses.mean_squared_error(labels, rating)
  if mode == tf.estimator.ModeKeys.EVAL:
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, eval_metrics=(metric_fn, [labels, rating]))
  optimizer = tf.train.AdamOptimizer(0.01)
  if FLAGS.use_tpu:
    optimizer = tf.tpu.CrossShardOptimizer(optimizer)
  train_op = optimizer.minimize(loss, tf.train.get_global_step())
  return tf.estimator.tpu.TPUEstimatorSpec(
      mode, loss=loss, train_op=train_op, host_call=(host_call_fn, {'loss': loss[tf.newaxis]}))


def host_call_fn(loss):
  """Writes a summary on the host, as programs do for TPUs."""
  with tf.compat.v2.summary.create_file_writer(
      os.path.join(FLAGS.model_dir, 'host')).as_default():
    tf.compat.v2.summary.scalar(
        'rating_error', tf.reduce_mean(loss), step=tf.train.get_global_step())
    return tf.summary.all_v2_summary_ops()


def metric_fn(labels, rating):
  return {
      'error': tf.metrics.root_mean_squared_error(labels, rating),
      'without': tf.metrics.root_mean_squared_error(labels, tf.zeros_like(labels)),
  }


def main(unused_argv):
  cluster = None
  if FLAGS.use_tpu:
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
        FLAGS.tpu_name, zone=FLAGS.tpu_zone, project=FLAGS.gcp_project)
  features, tables = create_configs()
  loop = FLAGS.iterations_per_loop
  estimator = tf.estimator.tpu.TPUEstimator(
      model_fn=model_fn,
      use_tpu=FLAGS.use_tpu,
      config=tf.estimator.tpu.RunConfig(
          cluster=cluster,
          model_dir=FLAGS.model_dir,
          tf_random_seed=1,
          tpu_config=tf.estimator.tpu.TPUConfig(
              iterations_per_loop=int(loop) if loop.isdigit() else loop,
              num_shards=FLAGS.num_shards)),
      train_batch_size=FLAGS.batch_size,
      eval_batch_size=FLAGS.batch_size,
      predict_batch_size=FLAGS.batch_size,
      embedding_config_spec=tf.estimator.tpu.experimental.EmbeddingConfigSpec(
          feature_to_config_dict=features,
          table_to_config_dict=tables,
          partition_strategy='mod'))

  estimator.train(make_input_fn(1), max_steps=FLAGS.train_steps)
  metrics = estimator.evaluate(make_input_fn(2), steps=FLAGS.eval_steps)
  with tf.gfile.Open(os.path.join(FLAGS.model_dir, 'metrics.json'), 'w') as f:
    json.dump({key: float(value) for key, value in metrics.items()}, f, indent=2)
  print('error: %.3f; without a model: %.3f' % (metrics['error'], metrics['without']))

  exported = estimator.export_saved_model(
      os.path.join(FLAGS.model_dir, 'export'), serving_input_receiver_fn)
  # What whoever serves the model can check it with: requests, and what they lead to.
  predicted = list(estimator.predict(make_input_fn(3, batches=1)))
  asked = [sample for (sample, _), _ in zip(wines(3), predicted)]
  np.savez(
      os.path.join(exported.decode(), 'sample.npz'),
      rating=[one['rating'] for one in predicted],
      **{key: [sample[key] for sample in asked] for key in TYPES})


if __name__ == '__main__':
  tf.disable_v2_behavior()
  logging.set_verbosity(logging.INFO)
  tf.get_logger().propagate = False  # Or absl would log every line a second time.
  flags.mark_flags_as_required(['model_dir'])
  app.run(main)
