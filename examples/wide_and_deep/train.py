"""Wide and deep, as a TPUEstimator program: will a visitor take the offer?

The wide part is linear in crossed and bucketized features and trained by FTRL; the deep
part is a network over embeddings, trained by Adagrad. City and interests have large
vocabularies, whose tables live in the embedding engine of the TPU; the day has a small one,
which stays an ordinary variable of the model. Vocabularies are files: the input_fn looks
strings up in them, since a TPU takes numbers only.

Training and evaluation alternate by `train_and_evaluate`, and training ends early when the
loss of evaluations stays where it is.

The data is drawn at random: --data_dir gets two CSV files and two vocabularies, unless
they are there already.

  python train.py --data_dir=DIR --model_dir=DIR [--use_tpu] [--train_steps=300]
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
from tensorflow_estimator.python.estimator import estimator_lib
from tensorflow_estimator.python.estimator.tpu import tpu_config
from tensorflow_estimator.python.estimator.tpu import tpu_estimator

FLAGS = flags.FLAGS

flags.DEFINE_string('data_dir', None, 'Folder for the CSV files and the vocabularies.')
flags.DEFINE_string('model_dir', None, 'Folder for checkpoints and metrics.json.')
flags.DEFINE_bool('use_tpu', False, 'Run on a TPU.')
flags.DEFINE_string('tpu', None, 'Name or grpc address of the TPU.')
flags.DEFINE_integer('num_shards', None, 'Cores of the TPU; by default, all it has.')

flags.DEFINE_integer('seed', 1, 'Decides the data and the initial weights.')
flags.DEFINE_integer('train_steps', 300, 'Steps in all.')
flags.DEFINE_integer('save_checkpoints_steps', 100, 'Steps from one evaluation to the next.')
flags.DEFINE_integer('eval_steps', 15, 'Batches of an evaluation.')
flags.DEFINE_float('learning_rate', 0.05, "Adagrad's, of the deep part.")
flags.DEFINE_float('embedding_learning_rate', 0.3, "Adagrad's, of the tables on a TPU.")
flags.DEFINE_integer('batch_size', 128, 'Samples per step, over all cores.')

NUM_CITIES = 200
NUM_INTERESTS = 300
MAX_INTERESTS = 4
DAYS = 7
NUM_SAMPLES = {'train': 12000, 'test': 2000}
AGE_BOUNDARIES = [18, 25, 35, 45, 55, 65]

COLUMNS = ['label', 'age', 'day', 'city', 'interests']
DEFAULTS = [[0.], [0.], [0], [''], ['']]


def make_data(data_dir, seed):
  """Writes train.csv, test.csv, cities.txt and interests.txt."""
  tf.gfile.MakeDirs(data_dir)
  rng = np.random.RandomState(seed)
  vocabularies = {
      'cities.txt': ['city %d' % i for i in range(NUM_CITIES)],
      'interests.txt': ['interest %d' % i for i in range(NUM_INTERESTS)]}
  for name, words in vocabularies.items():
    with tf.gfile.Open(os.path.join(data_dir, name), 'w') as f:
      f.write('\n'.join(words) + '\n')
  city_effect = rng.normal(size=NUM_CITIES)
  interest_effect = rng.normal(size=NUM_INTERESTS)
  for name, count in NUM_SAMPLES.items():
    with tf.gfile.Open(os.path.join(data_dir, name + '.csv'), 'w') as f:
      for _ in range(count):
        age, day, city = rng.randint(16, 80), rng.randint(DAYS), rng.randint(NUM_CITIES)
        interests = rng.randint(NUM_INTERESTS, size=rng.randint(1, MAX_INTERESTS + 1))
        logit = (2. * city_effect[city] + interest_effect[interests].sum() +
                 (1. if day >= 5 and age < 35 else -.5))
        label = rng.uniform() < 1. / (1. + np.exp(-logit))
        f.write('%d,%d,%d,%s,%s\n' % (
            label, age, day, vocabularies['cities.txt'][city],
            '|'.join(vocabularies['interests.txt'][i] for i in interests)))


def make_features_fn(data_dir):
  """Returns a function that makes features of fields; call it where it is used: it has tables."""

  def lookup(vocabulary):
    return tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
            os.path.join(data_dir, vocabulary),
            tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER),
        default_value=0)

  cities, interests = lookup('cities.txt'), lookup('interests.txt')

  def to_features(fields):
    city = tf.sparse.from_dense(cities.lookup(fields['city'])[:, tf.newaxis] + 1)
    words = tf.string_split(fields['interests'], '|')
    return {
        'age': fields['age'][:, tf.newaxis],
        'day': tf.cast(fields['day'], tf.int64)[:, tf.newaxis],
        # Above, 0 would have been left out.
        'city': tf.SparseTensor(city.indices, city.values - 1, city.dense_shape),
        'interests': tf.SparseTensor(
            words.indices, interests.lookup(words.values), words.dense_shape),
    }

  return to_features


def make_input_fn(data_dir, name, training, batches=None):
  """Returns an input_fn over a CSV file, or over its first batches."""

  def input_fn(params):
    to_features = make_features_fn(data_dir)

    def parse(lines):
      fields = dict(zip(COLUMNS, tf.io.decode_csv(lines, DEFAULTS)))
      label = fields.pop('label')[:, tf.newaxis]
      return to_features(fields), label

    dataset = tf.data.TextLineDataset(os.path.join(data_dir, name + '.csv'))
    if training:
      dataset = dataset.shuffle(1000, seed=FLAGS.seed).repeat()
    dataset = dataset.batch(params['batch_size'], drop_remainder=True)
    if batches is not None:
      dataset = dataset.take(batches)
    return dataset.map(parse).prefetch(2)

  return input_fn


def make_receiver_fn(data_dir):
  """Returns what takes the fields of a line, the strings as they are: the model has the files."""

  def serving_input_receiver_fn():
    types = {'age': tf.float32, 'day': tf.int32, 'city': tf.string, 'interests': tf.string}
    fields = {key: tf.placeholder(types[key], [None], name='field_' + key) for key in types}
    return estimator_lib.export.ServingInputReceiver(make_features_fn(data_dir)(fields), fields)

  return serving_input_receiver_fn


def write_sample(path, lines, predicted):
  """Writes what whoever serves the model can check it with: requests, and what they lead to."""
  fields = [line.strip().split(',') for line, _ in zip(lines, predicted)]
  _, age, day, city, interests = zip(*fields)
  np.savez(
      path, age=np.float32(age), day=np.int32(day), city=city, interests=interests,
      probability=[one['probability'] for one in predicted])


def create_columns():
  """Returns wide columns, deep columns, and those of the deep ones that a TPU looks up."""
  identity = tf.feature_column.categorical_column_with_identity
  age = tf.feature_column.numeric_column('age')
  age_bucket = tf.feature_column.bucketized_column(age, AGE_BOUNDARIES)
  day = identity('day', DAYS)
  wide = [
      age_bucket,
      tf.feature_column.indicator_column(
          tf.feature_column.crossed_column([age_bucket, 'day'], 100))]

  city = tf.tpu.experimental.embedding_column(identity('city', NUM_CITIES), dimension=8)
  interests = tf.tpu.experimental.embedding_column(
      identity('interests', NUM_INTERESTS), dimension=8, combiner='sum')
  plain = [
      tf.feature_column.embedding_column(day, dimension=2),
      tf.feature_column.numeric_column('age', normalizer_fn=lambda x: (x - 45.) / 20.)]
  return wide, plain + [city, interests], [city, interests]


def metric_fn(labels, logits):
  """Returns the evaluation metrics."""
  probability = tf.nn.sigmoid(logits)
  return {
      'accuracy': tf.metrics.accuracy(labels, tf.round(probability)),
      'auc': tf.metrics.auc(labels, probability),
  }


def make_model_fn(wide_columns, deep_columns):
  """Returns the model_fn over the columns."""

  def model_fn(features, labels, mode, params):
    del params  # TPUEstimator passes the batch size; nothing here needs it.
    with tf.variable_scope('wide'):
      wide = tf.layers.dense(tf.keras.layers.DenseFeatures(wide_columns)(features), 1)
    with tf.variable_scope('deep'):
      deep = tf.keras.layers.DenseFeatures(deep_columns)(features)
      for width in (32, 16):
        deep = tf.layers.dense(deep, width, activation=tf.nn.relu)
      deep = tf.layers.dense(deep, 1)
    logits = wide + deep
    if mode == estimator_lib.ModeKeys.PREDICT:
      predictions = {'probability': tf.nn.sigmoid(logits)}
      outputs = estimator_lib.export.PredictOutput(predictions)
      return tpu_estimator.TPUEstimatorSpec(
          mode, predictions=predictions, export_outputs={'serving_default': outputs})

    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    if mode == estimator_lib.ModeKeys.EVAL:
      return tpu_estimator.TPUEstimatorSpec(
          mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]))

    def minimize(optimizer, variables, global_step=None):
      if FLAGS.use_tpu:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
      return optimizer.minimize(loss, global_step=global_step, var_list=variables)

    global_step = tf.train.get_global_step()
    linear = tf.trainable_variables('wide')
    others = [v for v in tf.trainable_variables() if not v.op.name.startswith('wide/')]
    train_op = tf.group(
        minimize(tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001), linear),
        minimize(tf.train.AdagradOptimizer(FLAGS.learning_rate), others, global_step))
    return tpu_estimator.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

  return model_fn


def main(unused_argv):
  if not tf.gfile.Exists(os.path.join(FLAGS.data_dir, 'train.csv')):
    make_data(FLAGS.data_dir, FLAGS.seed)
  wide_columns, deep_columns, tpu_columns = create_columns()
  cluster = None
  if FLAGS.tpu:
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(FLAGS.tpu)
  run_config = tpu_config.RunConfig(
      cluster=cluster,
      model_dir=FLAGS.model_dir,
      tf_random_seed=FLAGS.seed,
      save_checkpoints_steps=FLAGS.save_checkpoints_steps,
      tpu_config=tpu_config.TPUConfig(
          iterations_per_loop=FLAGS.save_checkpoints_steps if FLAGS.use_tpu else 1,
          num_shards=FLAGS.num_shards,
          per_host_input_for_training=tpu_config.InputPipelineConfig.PER_HOST_V2))
  estimator = tpu_estimator.TPUEstimator(
      model_fn=make_model_fn(wide_columns, deep_columns),
      use_tpu=FLAGS.use_tpu,
      config=run_config,
      train_batch_size=FLAGS.batch_size,
      eval_batch_size=FLAGS.batch_size,
      predict_batch_size=FLAGS.batch_size,
      embedding_config_spec=tpu_estimator.EmbeddingConfigSpec(
          feature_columns=tpu_columns,
          optimization_parameters=tpu_embedding.AdagradParameters(
              FLAGS.embedding_learning_rate, initial_accumulator=0.01)))

  os.makedirs(estimator.eval_dir(), exist_ok=True)
  early_stopping = tf.estimator.experimental.stop_if_no_decrease_hook(
      estimator, 'loss', max_steps_without_decrease=5 * FLAGS.save_checkpoints_steps,
      run_every_secs=None, run_every_steps=FLAGS.save_checkpoints_steps)
  evaluation, _ = estimator_lib.train_and_evaluate(
      estimator,
      estimator_lib.TrainSpec(
          make_input_fn(FLAGS.data_dir, 'train', True),
          max_steps=FLAGS.train_steps, hooks=[early_stopping]),
      estimator_lib.EvalSpec(
          make_input_fn(FLAGS.data_dir, 'test', False),
          steps=FLAGS.eval_steps, throttle_secs=0))

  metrics = {key: float(value) for key, value in evaluation.items()}
  with tf.gfile.Open(os.path.join(FLAGS.model_dir, 'metrics.json'), 'w') as f:
    json.dump(metrics, f, indent=2, sort_keys=True)
  print('AUC on the test set: %.3f' % metrics['auc'])

  exported = estimator.export_saved_model(
      os.path.join(FLAGS.model_dir, 'export'), make_receiver_fn(FLAGS.data_dir))
  predicted = list(estimator.predict(make_input_fn(FLAGS.data_dir, 'test', False, batches=1)))
  with tf.gfile.Open(os.path.join(FLAGS.data_dir, 'test.csv')) as lines:
    write_sample(os.path.join(exported.decode(), 'sample.npz'), lines, predicted)


if __name__ == '__main__':
  tf.disable_v2_behavior()
  logging.set_verbosity(logging.INFO)
  tf.get_logger().propagate = False  # Or absl would log every line a second time.
  flags.mark_flags_as_required(['data_dir', 'model_dir'])
  app.run(main)
