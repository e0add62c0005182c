"""A census, as a program with a canned estimator: does a person earn more than the median?

A linear model over categories and their crosses, and a network over embeddings, are trained
together by `tf.estimator.DNNLinearCombinedClassifier`: no model_fn is written. Columns are
those of `tf.feature_column`; training and evaluation alternate by `train_and_evaluate`,
which exports the model at the end, for requests of serialized tf.train.Examples.

The people are drawn at random: --data_dir gets two CSV files, unless they are there already.

  python train.py --data_dir=DIR --model_dir=DIR [--train_steps=400]
"""

from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import json
import os

from absl import app
from absl import flags
import numpy as np
import tensorflow as tf

FLAGS = flags.FLAGS

flags.DEFINE_string('data_dir', None, 'Folder for the CSV files.')
flags.DEFINE_string('model_dir', None, 'Folder for checkpoints, exports and metrics.json.')
flags.DEFINE_integer('seed', 1, 'Decides the data and the initial weights.')
flags.DEFINE_integer('train_steps', 400, 'Steps in all.')
flags.DEFINE_integer('save_checkpoints_steps', 200, 'Steps from one evaluation to the next.')
flags.DEFINE_integer('batch_size', 64, 'People per step.')
flags.DEFINE_float('dropout', .1, 'Share of the hidden outputs that training drops.')

WORKCLASSES = ['private', 'self-employed', 'federal', 'state', 'local', 'none']
EDUCATIONS = ['school', 'college', 'bachelor', 'master', 'doctor']
STATUSES = ['single', 'married', 'divorced', 'widowed']
OCCUPATIONS = ['o%d' % i for i in range(40)]  # hashed: the program has no list of them
LABELS = ['less', 'more']
AGE_BOUNDARIES = [25., 35., 45., 55., 65.]
NUM_PEOPLE = {'train': 8000, 'test': 2000}

COLUMNS = ['age', 'hours', 'workclass', 'education', 'status', 'occupation', 'weight', 'income']
DEFAULTS = [[0.], [0.], [''], [''], [''], [''], [1.], ['']]


def make_data(data_dir, seed):
  """Writes train.csv and test.csv."""
  tf.io.gfile.makedirs(data_dir)
  rng = np.random.RandomState(seed)
  effects = {len(words): rng.normal(size=len(words))
             for words in (WORKCLASSES, EDUCATIONS, STATUSES, OCCUPATIONS)}
  for name, count in NUM_PEOPLE.items():
    with tf.io.gfile.GFile(os.path.join(data_dir, name + '.csv'), 'w') as f:
      for _ in range(count):
        age, hours = rng.randint(18, 80), rng.randint(10, 70)
        ids = [rng.randint(len(words))
               for words in (WORKCLASSES, EDUCATIONS, STATUSES, OCCUPATIONS)]
        score = sum(effects[n][i] for n, i in zip((6, 5, 4, 40), ids))
        # A doctor's diploma pays late, which a cross of age and education can say.
        score += .03 * (hours - 40) + (1.5 if ids[1] == 4 and age > 45 else 0.)
        score -= .002 * (age - 50) ** 2 - .4
        words = [WORKCLASSES[ids[0]], EDUCATIONS[ids[1]], STATUSES[ids[2]], OCCUPATIONS[ids[3]]]
        label = LABELS[int(rng.uniform() < 1. / (1. + np.exp(-2. * score)))]
        f.write('%d,%d,%s,%.3f,%s\n' % (age, hours, ','.join(words), rng.uniform(.5, 1.5), label))


def make_columns():
  """Returns the columns of the linear model, and those of the network."""
  fc = tf.feature_column
  age = fc.numeric_column('age')
  hours = fc.numeric_column('hours', normalizer_fn=lambda x: (x - 40.) / 15.)
  ages = fc.bucketized_column(age, AGE_BOUNDARIES)
  workclass = fc.categorical_column_with_vocabulary_list('workclass', WORKCLASSES)
  education = fc.categorical_column_with_vocabulary_list('education', EDUCATIONS)
  status = fc.categorical_column_with_vocabulary_list('status', STATUSES)
  occupation = fc.categorical_column_with_hash_bucket('occupation', 100)
  wide = [ages, workclass, education, status, occupation,
          fc.crossed_column([ages, education], 200),
          fc.crossed_column([education, 'occupation'], 1000)]
  deep = [hours, fc.indicator_column(ages), fc.indicator_column(workclass),
          fc.indicator_column(education), fc.indicator_column(status),
          fc.embedding_column(occupation, 8)]
  return wide, deep


def make_input_fn(name, epochs=None):
  """Returns an input_fn over a CSV file."""
  def input_fn():
    files = os.path.join(FLAGS.data_dir, name + '.csv')
    dataset = tf.data.TextLineDataset(files)
    if epochs is None:
      dataset = dataset.shuffle(NUM_PEOPLE[name], seed=FLAGS.seed).repeat()

    def parse(lines):
      features = dict(zip(COLUMNS, tf.io.decode_csv(lines, DEFAULTS)))
      label = features.pop('income')
      return features, label

    return dataset.batch(FLAGS.batch_size).map(parse)
  return input_fn


def main(_):
  if not tf.io.gfile.exists(os.path.join(FLAGS.data_dir, 'test.csv')):
    make_data(FLAGS.data_dir, FLAGS.seed)
  wide, deep = make_columns()
  config = tf.estimator.RunConfig(
      model_dir=FLAGS.model_dir, tf_random_seed=FLAGS.seed,
      save_checkpoints_steps=FLAGS.save_checkpoints_steps, save_summary_steps=100)
  estimator = tf.estimator.DNNLinearCombinedClassifier(
      linear_feature_columns=wide, linear_optimizer='Ftrl',
      dnn_feature_columns=deep, dnn_hidden_units=[32, 16], dnn_dropout=FLAGS.dropout,
      dnn_optimizer=lambda: tf.keras.optimizers.legacy.Adagrad(.05),
      label_vocabulary=LABELS, weight_column='weight', config=config)

  spec = tf.feature_column.make_parse_example_spec(wide + deep)
  receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
  metrics, _ = tf.estimator.train_and_evaluate(
      estimator,
      tf.estimator.TrainSpec(make_input_fn('train'), max_steps=FLAGS.train_steps),
      tf.estimator.EvalSpec(
          make_input_fn('test', 1), steps=None, throttle_secs=0, start_delay_secs=0,
          exporters=tf.estimator.FinalExporter('income', receiver)))
  with tf.io.gfile.GFile(os.path.join(FLAGS.model_dir, 'metrics.json'), 'w') as f:
    json.dump({name: float(value) for name, value in metrics.items()}, f, indent=2)
  print('accuracy %.3f (always the more frequent answer: %.3f), AUC %.3f' % (
      metrics['accuracy'], metrics['accuracy_baseline'], metrics['auc']))


if __name__ == '__main__':
  flags.mark_flags_as_required(['data_dir', 'model_dir'])
  app.run(main)
