"""Programs whose model_fn stays and whose estimator becomes a `TrainerModel`."""

from __future__ import annotations

import pathlib

import pytest

from compat_tests.migrate.test_tf2_form_runs import check_equal
from estimator_bridge.migrate import packages
from estimator_bridge.migrate.forms import FORMS
from estimator_bridge.migrate.rewrite_report import left_to_do

PROGRAM = """\
import sys
import tempfile

import tensorflow.compat.v1 as tf

SETTINGS = {'tf_random_seed': 3, 'save_checkpoints_steps': 4}


def input_fn(mode):
  numbers = tf.data.Dataset.range(1, 25)
  dataset = numbers.map(lambda each: tf.cast(each, tf.float32) / 24.0).batch(4)
  if mode == tf.estimator.ModeKeys.TRAIN:
    dataset = dataset.repeat()
  values = tf.data.make_one_shot_iterator(dataset).get_next()
  return {'x': tf.expand_dims(values, 1)}, tf.square(values)


def model_fn(features, labels, mode, params):
  training = mode == tf.estimator.ModeKeys.TRAIN
  with tf.variable_scope('tower', initializer=tf.glorot_uniform_initializer(seed=1)):
    net = tf.layers.dense(features['x'], 4, tf.nn.relu)
    net = tf.layers.batch_normalization(net, training=training)
    cell = tf.nn.rnn_cell.GRUCell(3)
    outputs, _ = tf.nn.dynamic_rnn(cell, tf.expand_dims(net, 1), dtype=tf.float32)
    net = tf.squeeze(tf.layers.dense(outputs[:, 0], 1), 1)
  if mode == tf.estimator.ModeKeys.PREDICT:
    return tf.estimator.EstimatorSpec(mode, predictions={'y': net})
  tf.losses.add_loss(tf.reduce_mean(tf.square(labels - net)))
  loss = tf.losses.get_total_loss()
  metrics = {'mean': tf.metrics.mean(net), 'rmse': tf.metrics.root_mean_squared_error(labels, net)}
  averages = tf.train.ExponentialMovingAverage(0.9)
  step = tf.train.get_or_create_global_step()
  optimizer = tf.train.AdadeltaOptimizer(tf.train.natural_exp_decay(params['rate'], step, 2, 0.5))
  with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train_op = optimizer.minimize(loss, step)
  with tf.control_dependencies([train_op]):
    train_op = averages.apply(tf.trainable_variables())
  hooks = [tf.train.LoggingTensorHook({'l': loss}, every_n_iter=2), tf.train.NanTensorHook(loss)]
  return tf.estimator.EstimatorSpec(
      mode, loss=loss, train_op=train_op, eval_metric_ops=metrics, training_hooks=hooks)


def main(unused_argv):
  config = tf.estimator.RunConfig(model_dir=tempfile.mkdtemp(), **SETTINGS)
  estimator = tf.estimator.Estimator(model_fn, config=config, params={'rate': 0.5})
  estimator.train(input_fn=input_fn, hooks=[tf.train.StepCounterHook()], max_steps=6)
  print(estimator.evaluate(input_fn=input_fn))
  print(next(estimator.predict(input_fn)))
  print(tf.train.list_variables(estimator.model_dir))


if __name__ == '__main__':
  tf.disable_v2_behavior()
  tf.app.run(main)
"""


def migrated(source: str) -> str:
    """Returns the new program, in which nothing is left to a person."""
    new = packages.rewrite_text(FORMS["keras"], source, "it.py")
    assert [*left_to_do({"it.py": new})] == []
    return new.source


def test_the_model_fn_stays_and_the_calls_are_those_of_keras() -> None:
    """Migrating the new program again changes nothing."""
    new = migrated(PROGRAM)

    for code in (
        "estimator = TrainerModel(model_fn, config=config, params={'rate': 0.5})",
        "estimator.fit(x=input_fn, callbacks=[tf.train.StepCounterHook()], max_steps=6)",
        "next(estimator.predictions(input_fn))",
        "values = make_iterator(dataset).get_next()",
        "print(list_variables(estimator.model_dir))",
    ):
        assert code in new
    assert "tf.nn.dynamic_rnn(cell, tf.expand_dims(net, 1), dtype=tf.float32)" in new
    assert "tf.estimator" not in new
    assert migrated(new) == new


def test_each_estimator_is_a_model() -> None:
    """A program may have several, of one model_fn or of more, and functions that make them."""
    other = "make('other')\n  other.train(input_fn, steps=1)\n"
    maker = """\
def make(name):
  return tf.estimator.Estimator(model_fn, name, params={'rate': 0.1})


def main("""
    source = PROGRAM.replace("def main(", maker)
    source = source.replace("  estimator.train(", f"  other = {other}  estimator.train(")
    new = migrated(source)

    assert new.count(" TrainerModel(model_fn, ") == 2
    assert "  other = make('other')\n  other.train(input_fn, steps=1)\n" in new


ON_TPU = (
    PROGRAM.replace("def input_fn(mode):", "def input_fn(mode, params):")
    .replace("  training = mode", "  assert not params['use_tpu']\n  training = mode")
    .replace(
        "estimator.EstimatorSpec(mode, predictions",
        "estimator.tpu.TPUEstimatorSpec(mode, predictions",
    )
    .replace("estimator.RunConfig", "estimator.tpu.RunConfig")
    .replace(
        "Estimator(model_fn, ",
        "tpu.TPUEstimator(\n      model_fn, use_tpu=False, train_batch_size=4, ",
    )
)
"""The same with a TPUEstimator, which has no tables and is told not to use a TPU."""


@pytest.mark.full
@pytest.mark.parametrize("program, side", [(PROGRAM, "bridge"), (ON_TPU, "bridge-tpu")])
def test_verify_calls_the_program_and_its_keras_form_equal(
    program: str, side: str, tmp_path: pathlib.Path
) -> None:
    """Both compute the same losses, variables, averages, metrics and predictions."""
    (tmp_path / "old.py").write_text(program)
    (tmp_path / "new.py").write_text(migrated(program))
    check_equal(tmp_path, side, "new.py", "old.py", steps=5)
