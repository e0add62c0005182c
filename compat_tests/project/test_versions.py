"""The TensorFlow versions that the project claims to support, and its type information."""

from __future__ import annotations

import os
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from estimator_bridge.runtime.input import feature_splitting
from tf2_engine import keras, preprocessing

PROGRAM = """
import logging, sys
import tensorflow as tf
logging.basicConfig(stream=sys.stdout, format="%(message)s")
tf.__version__ = sys.argv[1]
from tf2_engine import tf_compat
"""


@pytest.mark.whole
@pytest.mark.parametrize("version, warned", [("2.18.0", True), (tf.__version__, False)])
def test_an_untested_tensorflow_is_named_once(version: str, warned: bool) -> None:
    """A TensorFlow that is not tested gets one warning that names it and those that are."""
    ran = fresh.code(PROGRAM, version, check=True)

    assert ran.stdout.count(f"TensorFlow {version}: this project is tested with") == warned
    assert ("2.15, 2.21, 2.22" in ran.stdout) == warned


OUT_OF_ORDER = tf.SparseTensor(
    [[2, 0], [0, 1], [3, 2], [0, 0]], tf.range(4, dtype=tf.int64), [5, 4]
)
COLUMN = preprocessing.Sequence(preprocessing.Identity("f", 9))
LENGTHS = {
    "of preprocessing": lambda ids: preprocessing.Preprocessing({"f": COLUMN})({"f": ids}).lengths[
        "f"
    ],
    "of a layer": lambda ids: keras.SequenceFeatures(keras.Indicator(COLUMN))({"f": ids})[1],
    "of TPUEstimator": lambda ids: feature_splitting._sequence_lengths(
        ids, SimpleNamespace(max_sequence_length=4)
    ),
}


@pytest.mark.whole
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_ids_out_of_order_have_the_lengths_of_2_22_everywhere(lengths: Any) -> None:
    """TensorFlow's own columns refuse such ids on each version, 2.22 after it has sorted them."""
    assert lengths(OUT_OF_ORDER).numpy().tolist() == [2, 0, 1, 3, 0]

    column = tf.feature_column.sequence_categorical_column_with_identity("f", 9)
    layer = tf.keras.experimental.SequenceFeatures(tf.feature_column.indicator_column(column))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is out of order"):
        layer({"f": OUT_OF_ORDER})


WITHOUT_TENSORBOARD = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)"
JOB = """
import tensorflow.compat.v1 as tf

column = tf.feature_column.categorical_column_with_identity("word", 9)
column = tf.tpu.experimental.embedding_column(column, 3)

def model_fn(features, labels, mode, params):
  logits = tf.layers.dense(tf.keras.layers.DenseFeatures([column])(features), 1)
  if mode == tf.estimator.ModeKeys.PREDICT:
    return tf.estimator.EstimatorSpec(mode, {"logits": logits})
  loss = tf.losses.mean_squared_error(labels, logits)
  tf.summary.scalar("squared", loss)
  optimizer = tf.tpu.CrossShardOptimizer(tf.train.AdagradOptimizer(0.1))
  train_op = optimizer.minimize(loss, tf.train.get_global_step())
  return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

def input_fn(params):
  features, labels = {"word": tf.constant([[1]] * 8, tf.int64)}, tf.ones([8, 1])
  return tf.data.Dataset.from_tensors((features, labels)).repeat()

def receiver():
  ids = tf.placeholder(tf.int64, [None, 1])
  return tf.estimator.export.ServingInputReceiver({"word": ids}, {"word": ids})

def main():
  config = tf.estimator.tpu.RunConfig(model_dir="m", save_summary_steps=1)
  spec = tf.estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=[column],
      optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1))
  job = tf.estimator.tpu.TPUEstimator(
      model_fn, config=config, train_batch_size=8, eval_batch_size=8, embedding_config_spec=spec)
  job.train(input_fn, max_steps=2)
  job.evaluate(input_fn, steps=1)
  job.export_saved_model("exported", receiver)
  [events] = tf.io.gfile.glob("m/events.out.*")
  print({value.tag for event in tf.train.summary_iterator(events) for value in event.summary.value})

if __name__ == "__main__":
  main()
"""


@pytest.mark.whole
@pytest.mark.parametrize(
    "command, printed",
    [
        ("run job.py", "'squared'"),
        ("audit --run job.py", "the bridge's predict works"),
        ("doctor", "TensorFlow: "),
        pytest.param(
            "verify --a bridge --b bridge-tpu --steps 2 job.py", "EQUAL", marks=pytest.mark.full
        ),
    ],
)
def test_tensorboard_is_optional(tmp_path: pathlib.Path, command: str, printed: str) -> None:
    """Training with summaries, evaluation, exports and other commands do without it."""
    (tmp_path / "tensorboard.py").write_text(WITHOUT_TENSORBOARD)
    (tmp_path / "job.py").write_text(JOB)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    ran = fresh.python("-m", "estimator_bridge", *command.split(), cwd=tmp_path, env=environment)

    assert ran.returncode == 0, ran.stderr
    assert printed in ran.stdout
