"""`migrate --form keras` keeps the model_fns of several models as functions."""

from __future__ import annotations

import pytest

from compat_tests.migrate.test_keras_form import method
from compat_tests.support.whole_forms import migrate_to_keras
from estimator_bridge import errors

HEAD = """\
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator

column = tf.tpu.experimental.embedding_column(
    tf.feature_column.categorical_column_with_identity('it', 9), 2)


def input_fn(params):
  it = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([3, 4], tf.int64), [2, 1])
  return tf.data.Dataset.from_tensors(({'it': it}, tf.ones([2, 1]))).repeat(9)


"""

FIRST = """\
def first_model_fn(features, labels, mode, params):
  net = tf.keras.layers.DenseFeatures([column])(features)
  return spec_of(tf.layers.dense(net, 1), labels, mode)


"""

SECOND = """\
def second_fn(features, labels, mode, params):
  net = tf.keras.layers.DenseFeatures([column])(features)
  net = tf.layers.dense(net, params['units'], tf.nn.relu)
  return spec_of(tf.layers.dense(net, 1), labels, mode)


"""

SPEC = """\
def spec_of(logits, labels, mode):
  loss = tf.losses.mean_squared_error(labels, logits)
  if mode == estimator.ModeKeys.EVAL:
    return estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]))
  optimizer = tf.train.AdamOptimizer(0.1)
  train_op = optimizer.minimize(loss, tf.train.get_global_step())
  return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def metric_fn(labels, logits):
  return {'error': tf.metrics.mean_absolute_error(labels, logits)}


"""


def estimator_call(model_fn: str, more: str = "", size: str = "2") -> str:
    return (
        f"estimator.tpu.TPUEstimator(\n    {model_fn}, use_tpu=False, train_batch_size={size}, "
        f"eval_batch_size=2, {more}\n    embedding_config_spec="
        "estimator.tpu.experimental.EmbeddingConfigSpec(\n        feature_columns=[column], "
        "optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1)))\n"
    )


DIRECT = (
    HEAD
    + FIRST
    + SECOND
    + SPEC
    + "one_estimator = "
    + estimator_call("first_model_fn", size="3")
    + "two = "
    + estimator_call("second_fn", "params={'units': 4}, ")
    + "one_estimator.train(input_fn, steps=2)\n"
    "two.train(input_fn, steps=2)\nprint(one_estimator.evaluate(input_fn, steps=1))\n"
)


HELPER = (
    HEAD
    + FIRST
    + SECOND.replace("params['units']", "4")
    + SPEC
    + "def make_estimator(name, model_fn, start=None):\n  return "
    + estimator_call("model_fn", "warm_start_from=start, model_dir=name, ")
    .replace("\n", "\n  ")
    .rstrip()
    + "\n\n\nfirst = make_estimator('a', first_model_fn)\nfirst.train(input_fn, steps=2)\n"
    "start = estimator.WarmStartSettings(first.latest_checkpoint(), vars_to_warm_start='it.*')\n"
    "second = make_estimator('b', start=start, model_fn=second_fn)\n"
    "second.train(input_fn, steps=2)\n"
)


def test_each_estimator_is_a_model_of_its_function() -> None:
    """Names follow the variables of the estimators, and shared functions stay as they are."""
    new = migrate_to_keras(DIRECT, "it").source

    assert "one_model = FunctionModel(first_model_fn, embedding, batch_sizes=" in new
    assert "two = FunctionModel(" in new
    assert "params={'units': 4}" in new
    assert new.count("def spec_of(") == 1
    assert "one_model.fit(one_model.data_of(input_fn, 'train'), steps=2)\ntwo.fit(" in new
    assert migrate_to_keras(new, "it").source == new


def test_a_function_that_takes_model_fns_still_takes_them() -> None:
    """The function is passed by position or by name; a model can start from another's tables."""
    new = migrate_to_keras(HELPER, "it").source

    assert "def make_model(name, model_fn, start=None):\n" in new
    assert "  model = FunctionModel(model_fn, embedding, batch_sizes=" in new
    assert "  model.warm_start_from(start)\n  return model\n" in new
    assert "first = make_model('a', first_model_fn)\n" in new
    assert "second = make_model('b', start=start, model_fn=second_fn)\n" in new
    assert "start = WarmStart(first.latest_checkpoint(), names='it.*')\n" in new


def test_names_in_different_functions_do_not_meet() -> None:
    """Each function's variable is the model that it creates, with its own batch size."""
    source = DIRECT[: DIRECT.index("one_estimator = ")]
    for name, size in (("first_model_fn", "3"), ("second_fn", "5")):
        more = "params={'units': 4}, " if name == "second_fn" else ""
        body = estimator_call(name, more, size).replace("\n", "\n  ").rstrip()
        source += f"def run_{name}():\n  it = {body}\n  it.train(input_fn, steps=2)\n\n\n"
    new = migrate_to_keras(source, "it").source

    assert "batch_sizes={'train': 3, 'eval': 2}" in method(new, "run_first_model_fn")
    assert "batch_sizes={'train': 5, 'eval': 2}" in method(new, "run_second_fn")


@pytest.mark.parametrize(
    "source",
    [
        DIRECT.replace("    second_fn,", "    [second_fn][0],"),
        HELPER.replace("'a', first_model_fn)", "'a', FNS['first'])"),
        HELPER.replace("('a', first_model_fn)", "(*names)"),
        HELPER.replace("start=None):\n", "start=None):\n  print(model_fn)\n"),
    ],
)
def test_any_expression_may_be_a_model_fn(source: str) -> None:
    """Where no class can be told, the model takes the function that the expression returns."""
    defined = "FNS = names = {}\n\n\ndef first_model_fn"
    new = migrate_to_keras(source.replace("def first_model_fn", defined, 1), "it")

    assert "model = FunctionModel(" in new.source


def test_an_estimator_may_be_an_attribute() -> None:
    """The attribute holds the model, also where another object has it."""
    source = DIRECT.replace("two = ", "job.two = ").replace("two.train", "self.two.train")
    defined = "class Job:\n  pass\n\n\njob = self = Job()\n\n\ndef first_model_fn"
    source = source.replace("def first_model_fn", defined, 1)
    new = migrate_to_keras(source, "it").source

    assert "job.two = " in new
    assert "self.two.fit(" in new
    assert "job.two.keep_checkpoints(" in new


def test_an_estimator_of_a_dict_is_refused() -> None:
    """What the entries of a dict are used for is not known."""
    with pytest.raises(errors.Untranslatable, match=r"\[keras-estimator\]"):
        migrate_to_keras(DIRECT.replace("two = ", "jobs = {}\njobs['two'] = "), "it")


def test_a_model_may_start_from_any_checkpoint() -> None:
    """The argument is passed on."""
    source = DIRECT.replace("    second_fn,", "    second_fn, warm_start_from=7,")

    assert "two.warm_start_from(7)" in migrate_to_keras(source, "it").source
