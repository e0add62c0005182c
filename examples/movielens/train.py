"""Predicts MovieLens ratings with a TPUEstimator whose tables are TPU embeddings.

The model is a matrix factorisation, with what the user rated before and a small network
beside it. With --use_tpu its tables (users, films, genres, age, occupation, gender) live
in the embedding engine of the TPU and are trained by `AdagradParameters`; without, they
are ordinary variables and the model's Adam trains them with the rest.

  python train.py --data_dir=DIR --model_dir=DIR [--use_tpu] [--seed=1]
"""

from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import collections
import json
import os

from absl import app
from absl import flags
from absl import logging
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator as tf_estimator

FLAGS = flags.FLAGS

flags.DEFINE_string('data_dir', None, 'Folder of ml-100k.{inter,item,user}; see fetch.py.')
flags.DEFINE_string('model_dir', None, 'Folder for records, checkpoints and metrics.json.')
flags.DEFINE_bool('resume', False, 'Continue from the checkpoint in model_dir.')
flags.DEFINE_integer('seed', 1, 'Decides the split, the initial weights and the order.')

flags.DEFINE_bool('use_tpu', False, 'Run on a TPU.')
flags.DEFINE_string('tpu', None, 'Name or grpc address of the TPU.')
flags.DEFINE_integer('num_shards', None, 'Cores of the TPU; by default, all it has.')
flags.DEFINE_integer('iterations_per_loop', 100, 'Steps the TPU makes on its own.')

flags.DEFINE_integer('train_steps', 1600, 'Steps in all, those resumed from included.')
flags.DEFINE_integer('save_checkpoints_steps', 800, 'Steps between two checkpoints.')
flags.DEFINE_integer('train_batch_size', 512, 'Ratings per step, over all cores.')
flags.DEFINE_integer('eval_batch_size', 1000, 'Must divide the number of test ratings.')
flags.DEFINE_integer('predict_batch_size', 8, 'Also the number of predictions shown.')

flags.DEFINE_integer('dimension', 16, 'Width of the vector of a user or a film.')
flags.DEFINE_integer('context_dimension', 8, 'Width of each other embedding.')
flags.DEFINE_list('hidden', ['32'], 'Widths of the network.')
flags.DEFINE_float('dropout', 0.5, 'Share of the inputs left out in training.')
flags.DEFINE_float('l2', 0.1, 'Weight of the squares of the vectors of user and film.')
flags.DEFINE_float('learning_rate', 0.003, "Adam's, of all that is not a table on a TPU.")
flags.DEFINE_float('embedding_learning_rate', 0.4, "Adagrad's, of the tables on a TPU.")
flags.DEFINE_float('initial_accumulator', 0.1, "Adagrad's, of the tables on a TPU.")

HISTORY = 20  # Films, at most, that a user's history goes back.
TEST_SHARE = 0.1

AGE_BUCKETS = (18, 25, 35, 45, 50, 56)
GENRES = (
    'unknown', 'Action', 'Adventure', 'Animation', "Children's", 'Comedy', 'Crime',
    'Documentary', 'Drama', 'Fantasy', 'Film-Noir', 'Horror', 'Musical', 'Mystery',
    'Romance', 'Sci-Fi', 'Thriller', 'War', 'Western')
OCCUPATIONS = (
    'administrator', 'artist', 'doctor', 'educator', 'engineer', 'entertainment',
    'executive', 'healthcare', 'homemaker', 'lawyer', 'librarian', 'marketing', 'none',
    'other', 'programmer', 'retired', 'salesman', 'scientist', 'student', 'technician',
    'writer')
GENDERS = ('F', 'M')

SINGLE_IDS = ('user_id', 'item_id', 'age', 'occupation', 'gender')
SHUFFLE_BUFFER = 100000  # At least as many as there are ratings: a full shuffle.

Columns = collections.namedtuple('Columns', 'user item history context')


class MovieLens(collections.namedtuple('MovieLens', 'train test mean users titles')):
  """The ratings and what the model needs to know of them before it is built.

  Attributes:
    train: dict of columns with one entry per rating, see `load`.
    test: likewise.
    mean: of the training ratings.
    users: what the files call each user, by user_id.
    titles: of the films, by item_id.
  """


def load(data_dir, seed):
  """Reads the files, splits the ratings and adds to each what is known beside it.

  Args:
    data_dir: folder of ml-100k.inter, ml-100k.item and ml-100k.user.
    seed: int; decides which tenth of the ratings is the test set.

  Returns:
    A `MovieLens`, whose `train` and `test` hold, for n ratings,
    each of SINGLE_IDS: [n] int64,
    genres: [n, *] ids,
    history: [n, *] item ids, latest first, at most HISTORY of them,
    history_rating: [n, *] their ratings less `mean`,
    rating: [n] float32.
  """
  users, items, ratings = (
    read_table(os.path.join(data_dir, 'ml-100k.' + kind)) for kind in ('user', 'item', 'inter')
  )
  user_id = positions(ratings['user_id'], users['user_id'])
  item_id = positions(ratings['item_id'], items['item_id'])
  rating = np.array(ratings['rating'], np.float32)
  timestamp = np.array(ratings['timestamp'], np.int64)

  is_test = np.zeros(len(rating), bool)
  order = np.random.RandomState(seed).permutation(len(rating))
  is_test[order[: int(TEST_SHARE * len(rating))]] = True
  mean = rating[~is_test].mean()

  genres = ragged(positions(film.split(), GENRES) for film in items['class'])
  past = histories(user_id, timestamp, ~is_test)
  columns = {
    'user_id': user_id,
    'item_id': item_id,
    'age': np.digitize(np.array(users['age'], np.int64), AGE_BUCKETS)[user_id],
    'occupation': positions(users['occupation'], OCCUPATIONS)[user_id],
    'gender': positions(users['gender'], GENDERS)[user_id],
    'genres': genres[item_id],
    'history': ragged(item_id[rows] for rows in past),
    'history_rating': ragged(rating[rows] - mean for rows in past),
    'rating': rating,
  }
  return MovieLens(
    train={key: column[~is_test] for key, column in columns.items()},
    test={key: column[is_test] for key, column in columns.items()},
    mean=float(mean),
    users=users['user_id'],
    titles=items['movie_title'],
  )


def read_table(path):
  """Reads tab separated text whose header is `name:type ...`; returns {name: [text]}."""
  with tf.gfile.Open(path) as lines:
    names = [field.split(':')[0] for field in next(lines).rstrip('\n').split('\t')]
    return dict(zip(names, zip(*(line.rstrip('\n').split('\t') for line in lines))))


def positions(values, vocabulary):
  """Returns the place of each value in `vocabulary`, [n] int64."""
  place = {value: i for i, value in enumerate(vocabulary)}
  return np.array([place[value] for value in values], np.int64)


def ragged(rows):
  """Returns an [n] array whose entries are arrays, each as long as it likes."""
  rows = list(rows)
  array = np.empty(len(rows), object)
  array[:] = rows
  return array


def histories(user_id, timestamp, is_train):
  """Finds what each rating's user had rated before it, as far as the training set tells.

  Only training ratings with a strictly smaller timestamp count, beside test and training
  ratings alike: what is to be predicted never shows up among what it is predicted from.

  Returns:
    A list of [at most HISTORY] arrays: which ratings, latest first.
  """
  past = [None] * len(user_id)
  for user in range(user_id.max() + 1):
    mine = np.flatnonzero(user_id == user)
    seen = mine[is_train[mine]]
    seen = seen[np.argsort(timestamp[seen], kind='stable')]
    for row, older in zip(mine, np.searchsorted(timestamp[seen], timestamp[mine], side='left')):
      past[row] = seen[max(0, older - HISTORY) : older][::-1]
  return past


def write_examples(path, ratings):
  """Writes `train` or `test` of a `MovieLens` as a TFRecord file of tf.train.Examples."""

  def ints(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

  def floats(values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))

  with tf.io.TFRecordWriter(path) as writer:
    for i in range(len(ratings['rating'])):
      row = {key: column[i] for key, column in ratings.items()}
      feature = {key: ints([row[key]]) for key in SINGLE_IDS}
      feature.update(
        genres=ints(row['genres']),
        genre_weights=floats([1.0 / len(row['genres'])] * len(row['genres'])),
        history=ints(row['history']),
        history_rating=floats(row['history_rating']),
        rating=floats([row['rating']]),
      )
      example = tf.train.Example(features=tf.train.Features(feature=feature))
      writer.write(example.SerializeToString())


def parse_examples(serialized):
  """Parses a batch of Examples.

  Args:
    serialized: [batch] string.

  Returns:
    features: SparseTensors, except history_rating, [batch, HISTORY] float32.
    labels: the ratings, [batch] float32.
  """
  spec = {key: tf.io.VarLenFeature(tf.int64) for key in SINGLE_IDS + ('genres', 'history')}
  spec.update(
    {key: tf.io.VarLenFeature(tf.float32) for key in ('genre_weights', 'history_rating')}
  )
  spec['rating'] = tf.io.FixedLenFeature([], tf.float32)
  features = tf.io.parse_example(serialized, spec)

  # Parsing makes them as wide as the longest of this batch; the model has one width.
  batch_size = serialized.shape.as_list()[0]
  for key in ('history', 'history_rating'):
    features[key] = tf.sparse.reset_shape(features[key], [batch_size, HISTORY])
  features['history_rating'] = tf.sparse.to_dense(features['history_rating'])
  return features, features.pop('rating')


def bias_baseline(data, user_damping=5.0, item_damping=3.0, rounds=10):
  """Fits `mean + user bias + item bias` to the training set.

  Args:
    data: a `MovieLens`.
    user_damping: how many ratings without deviation each user is lent, so that few
      ratings make a small bias.
    item_damping: likewise, each film.
    rounds: alternating updates; the problem is convex and a few will do.

  Returns:
    The RMSE on the test set.
  """

  def fit(ids, deviation, size, damping):
    return np.bincount(ids, deviation, size) / (np.bincount(ids, minlength=size) + damping)

  train, test = data.train, data.test
  users, items = np.zeros(len(data.users)), np.zeros(len(data.titles))
  deviation = train['rating'] - data.mean
  for _ in range(rounds):
    items = fit(train['item_id'], deviation - users[train['user_id']], len(items), item_damping)
    users = fit(train['user_id'], deviation - items[train['item_id']], len(users), user_damping)
  predicted = data.mean + users[test['user_id']] + items[test['item_id']]
  return float(np.sqrt(np.mean(np.square(np.clip(predicted, 1, 5) - test['rating']))))


def create_columns(num_users, num_items):
  """Returns the `Columns` of the model, all of them TPU embedding columns."""
  identity = tf.feature_column.categorical_column_with_identity
  sequence_identity = tf.feature_column.sequence_categorical_column_with_identity
  initializer = tf.random_normal_initializer(stddev=0.03)

  # One wider than the vectors: the last number is the bias of the user or the film.
  user = tf.tpu.experimental.embedding_column(
      identity('user_id', num_users), FLAGS.dimension + 1, initializer=initializer)
  item, history = tf.tpu.experimental.shared_embedding_columns(
      [identity('item_id', num_items), sequence_identity('history', num_items)],
      FLAGS.dimension + 1,
      initializer=initializer,
      shared_embedding_collection_name='items',
      max_sequence_lengths=[0, HISTORY])

  genres = tf.feature_column.weighted_categorical_column(
      identity('genres', len(GENRES)), 'genre_weights')
  context = [
      tf.tpu.experimental.embedding_column(genres, FLAGS.context_dimension, combiner='sum')]
  for key, size in (('age', len(AGE_BUCKETS) + 1),
                    ('occupation', len(OCCUPATIONS)),
                    ('gender', len(GENDERS))):
    context.append(tf.tpu.experimental.embedding_column(
        identity(key, size), FLAGS.context_dimension))
  return Columns(user, item, history, context)


def make_input_fn(path, mode):
  """Returns an input_fn that reads the Examples in the TFRecord file `path`."""

  def input_fn(params):
    dataset = tf.data.TFRecordDataset(path)
    if mode == tf_estimator.ModeKeys.TRAIN:
      dataset = dataset.cache().shuffle(SHUFFLE_BUFFER, seed=FLAGS.seed).repeat()
    dataset = dataset.batch(params['batch_size'], drop_remainder=True)
    dataset = dataset.map(parse_examples, num_parallel_calls=2)
    return dataset.prefetch(4)

  return input_fn


def predict_rating(features, columns, mean, training):
  """Builds the model.

  Args:
    features: see `parse_examples`.
    columns: the `Columns`.
    mean: of the training ratings; the model predicts the deviation.
    training: whether to drop out inputs.

  Returns:
    rating: [batch] float32.
    penalty: scalar, the mean square length of the vectors of user and film.
  """
  user = tf.keras.layers.DenseFeatures([columns.user])(features)
  item = tf.keras.layers.DenseFeatures([columns.item])(features)
  context = tf.keras.layers.DenseFeatures(columns.context)(features)
  history, length = tf.keras.experimental.SequenceFeatures([columns.history])(features)
  past_rating = features['history_rating']

  # L2 on what was looked up, not on the tables: it is the one kind of regularisation that
  # reaches tables on a TPU and tables in variables alike.
  penalty = tf.add_n([tf.reduce_mean(tf.reduce_sum(tf.square(x), 1)) for x in (user, item)])

  user, user_bias = user[:, :-1], user[:, -1]
  item, item_bias = item[:, :-1], item[:, -1]
  history = tf.reshape(history, [-1, HISTORY, FLAGS.dimension + 1])[:, :, :-1]
  mask = tf.sequence_mask(length, HISTORY, tf.float32)

  # The films of the history, as such and by how the user liked them, adjust the user.
  scale = tf.rsqrt(tf.reduce_sum(mask, 1, keepdims=True) + 1.)
  seen = scale * tf.reduce_sum(history, 1)
  liked = scale * tf.einsum('bt,btd->bd', past_rating, history)
  user += tf.layers.dense(
      tf.concat([seen, liked], 1), FLAGS.dimension, use_bias=False, name='taste')

  # And films like the one in question have been rated, perhaps, like it.
  query = tf.layers.dense(item, FLAGS.dimension, use_bias=False, name='query')
  likeness = mask * tf.sigmoid(tf.einsum('bd,btd->bt', query, history))
  neighbours = tf.reduce_sum(likeness * past_rating, 1) / (tf.reduce_sum(likeness, 1) + 1.)

  net = tf.concat([user, item, user * item, liked, context, neighbours[:, tf.newaxis]], 1)
  for i, width in enumerate(FLAGS.hidden):
    net = tf.layers.dropout(net, FLAGS.dropout, training=training)
    net = tf.layers.dense(net, int(width), activation=tf.nn.relu, name='hidden_%d' % i)
  net = tf.layers.dense(net, 1, name='output')

  agreement = tf.layers.dropout(user * item, FLAGS.dropout, training=training)
  rating = mean + user_bias + item_bias + tf.reduce_sum(agreement, 1) + net[:, 0]
  return rating, penalty


def metric_fn(labels, predictions):
  """Returns the evaluation metrics; no film has less than 1 star, or more than 5."""
  return {'rmse': tf.metrics.root_mean_squared_error(
      labels, tf.clip_by_value(predictions, 1., 5.))}


def make_model_fn(columns):
  """Returns the model_fn over `columns`."""

  def model_fn(features, labels, mode, params):
    training = mode == tf_estimator.ModeKeys.TRAIN
    rating, penalty = predict_rating(features, columns, params['mean'], training)
    if mode == tf_estimator.ModeKeys.PREDICT:
      return tf_estimator.tpu.TPUEstimatorSpec(
          mode, predictions={'rating': tf.clip_by_value(rating, 1., 5.)})

    loss = tf.losses.mean_squared_error(labels, rating) + FLAGS.l2 * penalty
    if mode == tf_estimator.ModeKeys.EVAL:
      return tf_estimator.tpu.TPUEstimatorSpec(
          mode, loss=loss, eval_metrics=(metric_fn, [labels, rating]))

    global_step = tf.train.get_or_create_global_step()
    optimizer = tf.train.AdamOptimizer(
        tf.train.cosine_decay(FLAGS.learning_rate, global_step, FLAGS.train_steps))
    if FLAGS.use_tpu:
      optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    return tf_estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, global_step=global_step))

  return model_fn


def create_estimator(data):
  """Returns the TPUEstimator for the ratings of a `MovieLens`."""
  columns = create_columns(len(data.users), len(data.titles))
  cluster = None
  if FLAGS.tpu:
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(FLAGS.tpu)
  config = tf_estimator.tpu.RunConfig(
      cluster=cluster,
      model_dir=FLAGS.model_dir,
      tf_random_seed=FLAGS.seed,
      save_checkpoints_steps=FLAGS.save_checkpoints_steps,
      log_step_count_steps=400,
      tpu_config=tf_estimator.tpu.TPUConfig(
          # Without a TPU there is no loop, but the number of steps between two lines of
          # the log is divided by it all the same.
          iterations_per_loop=FLAGS.iterations_per_loop if FLAGS.use_tpu else 1,
          num_shards=FLAGS.num_shards,
          per_host_input_for_training=tf_estimator.tpu.InputPipelineConfig.PER_HOST_V2))
  return tf_estimator.tpu.TPUEstimator(
      model_fn=make_model_fn(columns),
      use_tpu=FLAGS.use_tpu,
      config=config,
      params={'mean': data.mean},
      train_batch_size=FLAGS.train_batch_size,
      eval_batch_size=FLAGS.eval_batch_size,
      predict_batch_size=FLAGS.predict_batch_size,
      embedding_config_spec=tf_estimator.tpu.experimental.EmbeddingConfigSpec(
          feature_columns=[columns.user, columns.item, columns.history] + columns.context,
          optimization_parameters=tf.tpu.experimental.AdagradParameters(
              FLAGS.embedding_learning_rate,
              initial_accumulator=FLAGS.initial_accumulator)))


def main(unused_argv):
  if tf.train.latest_checkpoint(FLAGS.model_dir) and not FLAGS.resume:
    raise app.UsageError('%s has a checkpoint: --resume from it, or give another '
                         '--model_dir.' % FLAGS.model_dir)
  data = load(FLAGS.data_dir, FLAGS.seed)
  num_test = len(data.test['rating'])
  if num_test % FLAGS.eval_batch_size:
    raise app.UsageError('--eval_batch_size=%d must divide the %d test ratings: a batch that '
                         'is not full is dropped.' % (FLAGS.eval_batch_size, num_test))
  logging.info('%d training and %d test ratings', len(data.train['rating']), num_test)

  train_path = os.path.join(FLAGS.model_dir, 'train.tfrecord')
  test_path = os.path.join(FLAGS.model_dir, 'test.tfrecord')
  tf.gfile.MakeDirs(FLAGS.model_dir)
  write_examples(train_path, data.train)
  write_examples(test_path, data.test)

  estimator = create_estimator(data)
  estimator.train(
      make_input_fn(train_path, tf_estimator.ModeKeys.TRAIN), max_steps=FLAGS.train_steps)
  evaluation = estimator.evaluate(
      make_input_fn(test_path, tf_estimator.ModeKeys.EVAL),
      steps=num_test // FLAGS.eval_batch_size)
  predictions = estimator.predict(make_input_fn(test_path, tf_estimator.ModeKeys.PREDICT))

  for i, prediction in zip(range(FLAGS.predict_batch_size), predictions):
    print('user %s rated %s: %d, predicted %.2f' % (
        data.users[data.test['user_id'][i]], data.titles[data.test['item_id'][i]],
        data.test['rating'][i], prediction['rating']))
  metrics = {
      'test_rmse': float(evaluation['rmse']),
      'baseline_rmse': bias_baseline(data),
      'global_step': int(evaluation['global_step']),
  }
  with tf.gfile.Open(os.path.join(FLAGS.model_dir, 'metrics.json'), 'w') as f:
    json.dump(metrics, f, indent=2, sort_keys=True)
  print('test RMSE: %.4f' % metrics['test_rmse'])
  print('baseline RMSE (user + item bias): %.4f' % metrics['baseline_rmse'])


if __name__ == '__main__':
  tf.disable_v2_behavior()
  logging.set_verbosity(logging.INFO)
  tf.get_logger().propagate = False  # Or absl would log every line a second time.
  flags.mark_flags_as_required(['data_dir', 'model_dir'])
  app.run(main)
