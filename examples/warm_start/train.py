"""A second model that starts from the tables of a first one, as two TPUEstimators.

First a model learns from many shop visits which articles go together. Then the one that is
wanted, of which visits end with an order, starts from its tables, trains on few samples and is
exported.

The data is drawn at random: articles belong to themes, a visit keeps to one theme, and some
themes sell.

  python train.py --model_dir=DIR [--use_tpu] [--pretrain_steps=150] [--train_steps=40]
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
from tensorflow.compat.v1 import estimator as tf_estimator

FLAGS = flags.FLAGS

flags.DEFINE_string('model_dir', None, 'Folder for both models.')
flags.DEFINE_bool('use_tpu', False, 'Run on a TPU.')
flags.DEFINE_integer('num_shards', None, 'Cores of the TPU; by default, all it has.')
flags.DEFINE_integer('pretrain_steps', 150, 'Steps of the first model.')
flags.DEFINE_integer('train_steps', 40, 'Steps of the second model.')
flags.DEFINE_integer('batch_size', 64, 'Samples per step, over all cores.')
flags.DEFINE_bool('warm_start', True, 'Whether the second model starts from the first.')

NUM_ARTICLES = 300
NUM_THEMES = 12
MAX_ARTICLES = 6


def visits(seed, samples):
  """Returns articles, [samples, MAX_ARTICLES], padded with -1; one more each; and orders."""
  rng = np.random.RandomState(seed)
  themes = rng.randint(NUM_THEMES, size=samples)
  articles = rng.randint(NUM_ARTICLES // NUM_THEMES, size=[samples, MAX_ARTICLES]) * NUM_THEMES
  articles += themes[:, np.newaxis]
  seen = rng.randint(2, MAX_ARTICLES + 1, size=[samples, 1])
  seen_articles = np.where(np.arange(MAX_ARTICLES) < seen, articles, -1).astype(np.int64)
  other = rng.randint(NUM_ARTICLES // NUM_THEMES, size=samples) * NUM_THEMES + themes
  goes_with = rng.randint(2, size=samples)
  other = np.where(goes_with, other, rng.randint(NUM_ARTICLES, size=samples)).astype(np.int64)
  return seen_articles, other, goes_with.astype(np.float32), (themes % 3 == 0).astype(np.float32)


def to_sparse(ids):
  indices = tf.where(ids >= 0)
  return tf.SparseTensor(indices, tf.gather_nd(ids, indices), tf.shape(ids, out_type=tf.int64))


def make_input_fn(seed, wanted, samples=2048, repeat=True):
  """Returns an input_fn; its labels are whether articles go together, or whether one orders."""

  def input_fn(params):
    articles, other, together, orders = visits(seed, samples)
    features = {'articles': articles, 'other': other}
    labels = {'together': together, 'orders': orders}[wanted]
    dataset = tf.data.Dataset.from_tensor_slices((features, labels[:, np.newaxis]))
    if repeat:
      dataset = dataset.repeat()
    dataset = dataset.batch(params['batch_size'], drop_remainder=repeat)

    def prepare(features, labels):
      return {'articles': to_sparse(features['articles']),
              'other': to_sparse(features['other'][:, tf.newaxis])}, labels

    return dataset.map(prepare)

  return input_fn


def raw_receiver_fn():
  articles = tf.placeholder(tf.int64, [None, MAX_ARTICLES], name='seen_articles')
  other = tf.placeholder(tf.int64, [None], name='other_article')
  features = {'articles': to_sparse(articles), 'other': to_sparse(other[:, tf.newaxis])}
  return tf_estimator.export.ServingInputReceiver(
      features, {'articles': articles, 'other': other})


def create_columns():
  identity = tf.feature_column.categorical_column_with_identity
  return tf.tpu.experimental.shared_embedding_columns(
      [identity('articles', NUM_ARTICLES), identity('other', NUM_ARTICLES)],
      dimension=8, combiner='mean', shared_embedding_collection_name='articles')


def together_model_fn(features, labels, mode, params):
  """Whether the other article goes with those that were seen."""
  seen, other = [
      tf.keras.layers.DenseFeatures([column])(features) for column in params['columns']]
  logits = tf.layers.dense(seen * other, 1, name='together')
  return spec_of(logits, labels, mode)


def orders_model_fn(features, labels, mode, params):
  """Whether the visit ends with an order."""
  net = tf.keras.layers.DenseFeatures(params['columns'])(features)
  net = tf.layers.dense(net, 16, tf.nn.relu, name='hidden')
  net = tf.layers.batch_normalization(
      net, training=mode == tf_estimator.ModeKeys.TRAIN, name='normalized')
  return spec_of(tf.layers.dense(net, 1, name='orders'), labels, mode)


def spec_of(logits, labels, mode):
  if mode == tf_estimator.ModeKeys.PREDICT:
    return tf_estimator.tpu.TPUEstimatorSpec(
        mode, predictions={'logits': logits, 'probability': tf.sigmoid(logits)})
  loss = tf.losses.sigmoid_cross_entropy(labels, logits)
  if mode == tf_estimator.ModeKeys.EVAL:
    return tf_estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]))
  optimizer = tf.train.AdamOptimizer(0.02)
  if FLAGS.use_tpu:
    optimizer = tf.tpu.CrossShardOptimizer(optimizer)
  with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train_op = optimizer.minimize(loss, tf.train.get_global_step())

  def scaffold_fn():
    return tf.train.Scaffold(saver=tf.train.Saver(tf.global_variables(), max_to_keep=2))

  return tf_estimator.tpu.TPUEstimatorSpec(
      mode, loss=loss, train_op=train_op, scaffold_fn=scaffold_fn)


def metric_fn(labels, logits):
  return {
      'auc': tf.metrics.auc(labels, tf.sigmoid(logits)),
      'accuracy': tf.metrics.accuracy(labels, tf.cast(logits > 0, tf.float32)),
  }


def make_estimator(name, model_fn, warm_start_from=None):
  columns = create_columns()
  return tf_estimator.tpu.TPUEstimator(
      model_fn=model_fn,
      use_tpu=FLAGS.use_tpu,
      config=tf_estimator.tpu.RunConfig(
          model_dir=os.path.join(FLAGS.model_dir, name),
          tf_random_seed=1,
          save_checkpoints_steps=20,
          tpu_config=tf_estimator.tpu.TPUConfig(
              iterations_per_loop=20, num_shards=FLAGS.num_shards)),
      params={'columns': columns},
      train_batch_size=FLAGS.batch_size,
      eval_batch_size=FLAGS.batch_size,
      predict_batch_size=FLAGS.batch_size,
      export_to_tpu=False,
      warm_start_from=warm_start_from,
      embedding_config_spec=tf_estimator.tpu.experimental.EmbeddingConfigSpec(
          feature_columns=columns,
          optimization_parameters=tf.tpu.experimental.AdagradParameters(0.2)))


def main(unused_argv):
  first = make_estimator('together', together_model_fn)
  first.train(make_input_fn(1, 'together'), max_steps=FLAGS.pretrain_steps)
  together = first.evaluate(make_input_fn(2, 'together'), steps=4)

  start = None
  if FLAGS.warm_start:
    start = tf_estimator.WarmStartSettings(
        first.latest_checkpoint(), vars_to_warm_start='.*articles.*')
  second = make_estimator('orders', orders_model_fn, start)
  second.train(make_input_fn(3, 'orders', samples=256), max_steps=FLAGS.train_steps)
  orders = second.evaluate(make_input_fn(4, 'orders'), steps=4)
  metrics = {key: float(value) for key, value in orders.items()}
  metrics['together_auc'] = float(together['auc'])
  with tf.gfile.Open(os.path.join(FLAGS.model_dir, 'metrics.json'), 'w') as f:
    json.dump(metrics, f, indent=2, sort_keys=True)
  print('area under the curve: %.3f; of the first model: %.3f' % (
      metrics['auc'], metrics['together_auc']))

  exported = second.export_saved_model(
      os.path.join(FLAGS.model_dir, 'export'), raw_receiver_fn)
  # What whoever serves the model can check it with: requests, and what they lead to. The last
  # batch is not a whole one.
  samples = FLAGS.batch_size + 3
  articles, other, _, _ = visits(5, samples)
  predicted = list(second.predict(make_input_fn(5, 'orders', samples, repeat=False)))
  np.savez(
      os.path.join(exported.decode(), 'sample.npz'),
      probability=[one['probability'] for one in predicted],
      articles=articles, other=other)


if __name__ == '__main__':
  tf.disable_v2_behavior()
  logging.set_verbosity(logging.INFO)
  tf.get_logger().propagate = False  # Or absl would log every line a second time.
  flags.mark_flags_as_required(['model_dir'])
  app.run(main)
