"""Retrieval with two towers, as a TPUEstimator program.

Who looks for what: a query tower makes a vector of the user, the words of the query and
what the user clicked before; an item tower makes one of the item and its category. The
loss is a softmax over the items of the batch: the other queries' items are the negatives.
Words are weighted, and the clicked items are a sequence that shares the items' table.

The data is drawn at random from a hidden world in which users and items have vectors and
words belong to items, so that there is something to find.

  python train.py --model_dir=DIR [--use_tpu] [--train_steps=120]
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

FLAGS = flags.FLAGS

flags.DEFINE_string('model_dir', None, 'Folder for checkpoints and metrics.json.')
flags.DEFINE_bool('use_tpu', False, 'Run on a TPU.')
flags.DEFINE_string('tpu', None, 'Name or grpc address of the TPU.')
flags.DEFINE_string('zone', None, 'Zone of the TPU.')
flags.DEFINE_string('project', None, 'Project of the TPU.')
flags.DEFINE_integer('num_shards', None, 'Cores of the TPU; by default, all it has.')
flags.DEFINE_integer('iterations_per_loop', 50, 'Steps the TPU makes on its own.')

flags.DEFINE_integer('seed', 1, 'Decides the world, the samples and the initial weights.')
flags.DEFINE_integer('train_steps', 120, 'Steps in all.')
flags.DEFINE_integer('eval_steps', 10, 'Batches of an evaluation.')
flags.DEFINE_integer('batch_size', 128, 'Samples per step, over all cores.')
flags.DEFINE_integer('dimension', 16, 'Width of the vectors that the towers make.')
flags.DEFINE_float('learning_rate', 0.01, "Adam's, of the layers.")
flags.DEFINE_float('embedding_learning_rate', 0.1, "Adagrad's, of the tables on a TPU.")

NUM_USERS = 300
NUM_ITEMS = 200
NUM_WORDS = 500
NUM_CATEGORIES = 12
MAX_WORDS = 5
MAX_CLICKS = 8
HIDDEN_DIMENSION = 4


class World(object):
  """Users, items and words, and how they belong together."""

  def __init__(self, seed):
    rng = np.random.RandomState(seed)
    self.users = rng.normal(size=[NUM_USERS, HIDDEN_DIMENSION])
    self.items = rng.normal(size=[NUM_ITEMS, HIDDEN_DIMENSION])
    self.categories = rng.randint(NUM_CATEGORIES, size=NUM_ITEMS)
    self.words = rng.randint(NUM_WORDS, size=[NUM_ITEMS, MAX_WORDS])
    likeness = np.exp(np.dot(self.users, self.items.T))
    self.up_to = np.cumsum(likeness / likeness.sum(1, keepdims=True), axis=1)

  def clicks(self, rng, user, count):
    """Draws items that a user clicks on, more often those that are like the user."""
    drawn = np.searchsorted(self.up_to[user], rng.uniform(size=count))
    return np.minimum(drawn, NUM_ITEMS - 1)  # Sums of floats may end below one.

  def samples(self, seed):
    """Yields samples for ever: lists of ids, padded with -1, and the weights of the words."""
    rng = np.random.RandomState(seed)
    while True:
      user = rng.randint(NUM_USERS)
      clicks = self.clicks(rng, user, rng.randint(1, MAX_CLICKS + 1))
      item, history = clicks[0], clicks[1:]
      words = self.words[item][:rng.randint(1, MAX_WORDS + 1)]
      yield {
          'user': np.array([user], np.int64),
          'item': np.array([item], np.int64),
          'category': np.array([self.categories[item]], np.int64),
          'words': _padded(words, MAX_WORDS, -1),
          'word_weights': _padded(rng.uniform(0.5, 1.5, len(words)), MAX_WORDS, 0.),
          'clicked': _padded(history, MAX_CLICKS, -1),
      }


def _padded(values, length, padding):
  dtype = np.int64 if padding == -1 else np.float32
  padded = np.full(length, padding, dtype)
  padded[:len(values)] = values
  return padded


SHAPES = {'user': [1], 'item': [1], 'category': [1], 'words': [MAX_WORDS],
          'word_weights': [MAX_WORDS], 'clicked': [MAX_CLICKS]}
TYPES = {key: tf.float32 if key == 'word_weights' else tf.int64 for key in SHAPES}


def to_sparse(samples):
  """Returns the features without their padding."""
  features = {}
  present = tf.where(samples['words'] >= 0)
  for key in ('user', 'item', 'category', 'words', 'clicked'):
    features[key] = tf.sparse.from_dense(samples[key] + 1)  # Zeros are what is left out.
    features[key] = tf.SparseTensor(
        features[key].indices, features[key].values - 1, features[key].dense_shape)
  features['word_weights'] = tf.SparseTensor(
      present, tf.gather_nd(samples['word_weights'], present),
      tf.shape(samples['words'], out_type=tf.int64))
  return features


def make_input_fn(world, seed, batches=None):
  """Returns an input_fn of so many batches; None is no end."""

  def with_label(samples):
    return to_sparse(samples), tf.zeros([tf.shape(samples['user'])[0]], tf.int64)

  def input_fn(params):
    dataset = tf.data.Dataset.from_generator(lambda: world.samples(seed), TYPES, SHAPES)
    dataset = dataset.batch(params['batch_size'], drop_remainder=True)
    if batches is not None:
      dataset = dataset.take(batches)
    return dataset.map(with_label).prefetch(2)

  return input_fn


def serving_input_receiver_fn():
  """Takes what `World.samples` yields."""
  samples = {
      key: tf.placeholder(TYPES[key], [None] + SHAPES[key], name=key) for key in SHAPES}
  return tf.estimator.export.ServingInputReceiver(to_sparse(samples), samples)


def create_columns():
  """Returns the columns of the query tower, the clicked items and those of the item tower."""
  identity = tf.feature_column.categorical_column_with_identity
  item, clicked = tf.tpu.experimental.shared_embedding_columns(
      [identity('item', NUM_ITEMS),
       tf.feature_column.sequence_categorical_column_with_identity('clicked', NUM_ITEMS)],
      dimension=FLAGS.dimension,
      shared_embedding_collection_name='items',
      max_sequence_lengths=[0, MAX_CLICKS])
  words = tf.tpu.experimental.embedding_column(
      tf.feature_column.weighted_categorical_column(
          identity('words', NUM_WORDS), 'word_weights'),
      dimension=FLAGS.dimension, combiner='sqrtn')
  user = tf.tpu.experimental.embedding_column(
      identity('user', NUM_USERS), dimension=FLAGS.dimension)
  category = tf.tpu.experimental.embedding_column(
      identity('category', NUM_CATEGORIES), dimension=4)
  return [user, words], clicked, [item, category]


def tower(inputs, name):
  """Returns a vector of length one for each sample, [batch, dimension]."""
  with tf.variable_scope(name):
    net = tf.layers.dense(inputs, 32, activation=tf.nn.relu)
    net = tf.layers.dense(net, FLAGS.dimension)
    return tf.math.l2_normalize(net, axis=1)


def metric_fn(labels, scores):
  """Returns how often the item is among the first one and the first five of its batch."""
  return {
      'recall_at_1': tf.metrics.mean(tf.nn.in_top_k(scores, labels, 1)),
      'recall_at_5': tf.metrics.mean(tf.nn.in_top_k(scores, labels, 5)),
  }


def make_model_fn(query_columns, clicked_column, item_columns):
  """Returns the model_fn over the columns."""

  def model_fn(features, labels, mode, params):
    del labels  # The item of a row is its label.
    clicked, length = tf.keras.experimental.SequenceFeatures([clicked_column])(features)
    history = tf.reduce_sum(clicked, 1) / (tf.cast(length, tf.float32) + 1.)[:, tf.newaxis]
    query = tf.keras.layers.DenseFeatures(query_columns)(features)
    query = tower(tf.concat([query, history], 1), 'query')
    item = tower(tf.keras.layers.DenseFeatures(item_columns)(features), 'item')

    if mode == tf.estimator.ModeKeys.PREDICT:
      predictions = {
          'query': query, 'item': item, 'score': tf.reduce_sum(query * item, 1)}
      outputs = tf.estimator.export.PredictOutput(predictions)
      return tf.estimator.tpu.TPUEstimatorSpec(
          mode, predictions=predictions, export_outputs={'serving_default': outputs})

    scores = params['scale'] * tf.matmul(query, item, transpose_b=True)
    labels = tf.range(tf.shape(scores)[0])
    loss = tf.losses.sparse_softmax_cross_entropy(labels, scores)
    if mode == tf.estimator.ModeKeys.EVAL:
      return tf.estimator.tpu.TPUEstimatorSpec(
          mode, loss=loss, eval_metrics=(metric_fn, [labels, scores]))

    optimizer = tf.train.AdamOptimizer(FLAGS.learning_rate)
    if FLAGS.use_tpu:
      optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

  return model_fn


def main(unused_argv):
  world = World(FLAGS.seed)
  query_columns, clicked_column, item_columns = create_columns()
  cluster = None
  if FLAGS.use_tpu:
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
        FLAGS.tpu, zone=FLAGS.zone, project=FLAGS.project)
  tpu_config = tf.estimator.tpu.TPUConfig(
      iterations_per_loop=FLAGS.iterations_per_loop if FLAGS.use_tpu else 1,
      num_shards=FLAGS.num_shards,
      per_host_input_for_training=tf.estimator.tpu.InputPipelineConfig.PER_HOST_V2)
  estimator = tf.estimator.tpu.TPUEstimator(
      model_fn=make_model_fn(query_columns, clicked_column, item_columns),
      use_tpu=FLAGS.use_tpu,
      config=tf.estimator.tpu.RunConfig(
          cluster=cluster, model_dir=FLAGS.model_dir, tf_random_seed=FLAGS.seed,
          tpu_config=tpu_config),
      params={'scale': 8.},
      train_batch_size=FLAGS.batch_size,
      eval_batch_size=FLAGS.batch_size,
      predict_batch_size=FLAGS.batch_size,
      embedding_config_spec=tf.estimator.tpu.experimental.EmbeddingConfigSpec(
          feature_columns=query_columns + [clicked_column] + item_columns,
          optimization_parameters=tf.tpu.experimental.AdagradParameters(
              FLAGS.embedding_learning_rate)))

  estimator.train(make_input_fn(world, FLAGS.seed + 1), max_steps=FLAGS.train_steps)
  evaluation = estimator.evaluate(
      make_input_fn(world, FLAGS.seed + 2), steps=FLAGS.eval_steps)
  metrics = {key: float(value) for key, value in evaluation.items()}
  metrics['chance_at_5'] = 5. / FLAGS.batch_size
  with tf.gfile.Open(os.path.join(FLAGS.model_dir, 'metrics.json'), 'w') as f:
    json.dump(metrics, f, indent=2, sort_keys=True)
  print('recall at 5 of %d: %.3f; by chance: %.3f' % (
      FLAGS.batch_size, metrics['recall_at_5'], metrics['chance_at_5']))

  exported = estimator.export_saved_model(
      os.path.join(FLAGS.model_dir, 'export'), serving_input_receiver_fn)
  # What whoever serves the model can check it with: requests, and what they lead to.
  seed = FLAGS.seed + 3
  predicted = list(estimator.predict(make_input_fn(world, seed, batches=1)))
  asked = [sample for sample, _ in zip(world.samples(seed), predicted)]
  np.savez(
      os.path.join(exported.decode(), 'sample.npz'),
      score=[one['score'] for one in predicted],
      **{key: [sample[key] for sample in asked] for key in SHAPES})


if __name__ == '__main__':
  tf.disable_v2_behavior()
  logging.set_verbosity(logging.INFO)
  tf.get_logger().propagate = False  # Or absl would log every line a second time.
  flags.mark_flags_as_required(['model_dir'])
  app.run(main)
