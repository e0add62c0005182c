"""What comes next in a session, as a TPUEstimator program with a recurrent network.

A session is a sequence of steps; in each the visitor does something and looks at a few items
at once. So one column is a sequence of single ids, the action, and the other a sequence of
baskets, with several ids at each position. Both sequences have the same length, and a GRU
over them tells the category that comes next.

The data is drawn at random: the category moves on by one with each purchase, and stays with
any other action.

  python train.py --model_dir=DIR [--use_tpu] [--train_steps=150]
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

flags.DEFINE_string('model_dir', None, 'Folder for checkpoints and results.')
flags.DEFINE_bool('use_tpu', False, 'Run on a TPU.')
flags.DEFINE_string('master', '', 'Address of the TPU.')
flags.DEFINE_integer('num_shards', None, 'Cores of the TPU; by default, all it has.')
flags.DEFINE_integer('iterations_per_loop', 50, 'Steps the TPU makes on its own.')
flags.DEFINE_integer('train_steps', 150, 'Steps in all.')
flags.DEFINE_integer('eval_steps', 5, 'Batches of an evaluation.')
flags.DEFINE_integer('batch_size', 64, 'Samples per step, over all cores.')

NUM_ITEMS = 64
NUM_CATEGORIES = 8  # An item belongs to that of its number, modulo this.
NUM_ACTIONS = 5
PURCHASE = 0
MAX_STEPS = 6
MAX_BASKET = 3
UNITS = 24


def sessions(seed):
  """Yields sessions for ever: features, padded with -1, and the category that comes next."""
  rng = np.random.RandomState(seed)
  while True:
    baskets = np.full([MAX_STEPS, MAX_BASKET], -1, np.int64)
    actions = np.full([MAX_STEPS], -1, np.int64)
    category = rng.randint(NUM_CATEGORIES)
    for step in range(rng.randint(1, MAX_STEPS + 1)):
      seen = rng.randint(1, MAX_BASKET + 1)
      shelf = rng.randint(NUM_ITEMS // NUM_CATEGORIES, size=seen)
      baskets[step, :seen] = shelf * NUM_CATEGORIES + category
      actions[step] = rng.randint(NUM_ACTIONS)
      if actions[step] == PURCHASE:
        category = (category + 1) % NUM_CATEGORIES
    yield {'baskets': baskets, 'actions': actions}, np.int64(category)


def to_sparse(padded):
  """Returns a SparseTensor without the padding."""
  indices = tf.where(padded >= 0)
  return tf.SparseTensor(
      indices, tf.gather_nd(padded, indices), tf.shape(padded, out_type=tf.int64))


def make_input_fn(seed, batches=None):
  """Returns an input_fn of so many batches; None is no end."""

  def input_fn(params):
    dataset = tf.data.Dataset.from_generator(
        lambda: sessions(seed),
        ({'baskets': tf.int64, 'actions': tf.int64}, tf.int64),
        ({'baskets': [MAX_STEPS, MAX_BASKET], 'actions': [MAX_STEPS]}, []))
    dataset = dataset.batch(params['batch_size'], drop_remainder=True)
    if batches is not None:
      dataset = dataset.take(batches)
    return dataset.map(
        lambda features, label: ({key: to_sparse(features[key]) for key in features}, label))

  return input_fn


def serving_input_receiver_fn():
  """Takes what `sessions` yields."""
  padded = {
      'baskets': tf.placeholder(tf.int64, [None, MAX_STEPS, MAX_BASKET], name='baskets'),
      'actions': tf.placeholder(tf.int64, [None, MAX_STEPS], name='actions'),
  }
  return tf.estimator.export.ServingInputReceiver(
      {key: to_sparse(padded[key]) for key in padded}, padded)


def create_columns():
  sequence = tf.feature_column.sequence_categorical_column_with_identity
  return [
      tf.tpu.experimental.embedding_column(
          sequence('baskets', NUM_ITEMS), dimension=8, combiner='mean',
          max_sequence_length=MAX_STEPS),
      tf.tpu.experimental.embedding_column(
          sequence('actions', NUM_ACTIONS), dimension=4, max_sequence_length=MAX_STEPS),
  ]


def make_model_fn(columns):
  """Returns the model_fn over the columns."""

  def model_fn(features, labels, mode, params):
    steps, lengths = tf.keras.experimental.SequenceFeatures(columns)(features)
    cell = tf.nn.rnn_cell.GRUCell(params['units'])
    _, state = tf.nn.dynamic_rnn(cell, steps, sequence_length=lengths, dtype=tf.float32)
    logits = tf.layers.dense(state, NUM_CATEGORIES)
    if mode == tf.estimator.ModeKeys.PREDICT:
      predictions = {'probabilities': tf.nn.softmax(logits), 'length': lengths}
      outputs = tf.estimator.export.PredictOutput(predictions)
      return tf.estimator.tpu.TPUEstimatorSpec(
          mode, predictions=predictions, export_outputs={'serving_default': outputs})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
      return tf.estimator.tpu.TPUEstimatorSpec(
          mode, loss=loss, eval_metrics=(metric_fn, {'labels': labels, 'logits': logits}))
    optimizer = tf.train.AdamOptimizer(0.02)
    if FLAGS.use_tpu:
      optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

  return model_fn


def metric_fn(labels, logits):
  return {'accuracy': tf.metrics.accuracy(labels, tf.argmax(logits, 1))}


def main(unused_argv):
  columns = create_columns()
  config = tf.estimator.tpu.RunConfig(
      master=FLAGS.master,
      model_dir=FLAGS.model_dir,
      tf_random_seed=1,
      tpu_config=tf.estimator.tpu.TPUConfig(
          iterations_per_loop=FLAGS.iterations_per_loop,
          num_shards=FLAGS.num_shards,
          per_host_input_for_training=tf.estimator.tpu.InputPipelineConfig.PER_HOST_V2))
  estimator = tf.estimator.tpu.TPUEstimator(
      model_fn=make_model_fn(columns),
      use_tpu=FLAGS.use_tpu,
      config=config,
      params={'units': UNITS},
      train_batch_size=FLAGS.batch_size,
      eval_batch_size=FLAGS.batch_size,
      predict_batch_size=FLAGS.batch_size,
      embedding_config_spec=tf.estimator.tpu.experimental.EmbeddingConfigSpec(
          feature_columns=columns,
          optimization_parameters=tf.tpu.experimental.AdamParameters(0.05)))

  estimator.train(make_input_fn(1), max_steps=FLAGS.train_steps)
  metrics = estimator.evaluate(make_input_fn(2), steps=FLAGS.eval_steps)
  with tf.gfile.Open(os.path.join(FLAGS.model_dir, 'metrics.json'), 'w') as f:
    json.dump({key: float(value) for key, value in metrics.items()}, f, indent=2)
  print('accuracy: %.3f; by chance: %.3f' % (metrics['accuracy'], 1. / NUM_CATEGORIES))

  exported = estimator.export_saved_model(
      os.path.join(FLAGS.model_dir, 'export'), serving_input_receiver_fn)
  # What whoever serves the model can check it with: requests, and what they lead to.
  predicted = list(estimator.predict(make_input_fn(3, batches=1)))
  asked = [session for (session, _), _ in zip(sessions(3), predicted)]
  np.savez(
      os.path.join(exported.decode(), 'sample.npz'),
      probabilities=[one['probabilities'] for one in predicted],
      baskets=[session['baskets'] for session in asked],
      actions=[session['actions'] for session in asked])


if __name__ == '__main__':
  tf.disable_v2_behavior()
  logging.set_verbosity(logging.INFO)
  tf.get_logger().propagate = False  # Or absl would log every line a second time.
  flags.mark_flags_as_required(['model_dir'])
  app.run(main)
