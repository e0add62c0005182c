"""The program in which the examples of the Keras form's refusals stand.

The first line of an example says what it takes the place of: `# in the model_fn`, for example.
"""

from __future__ import annotations

import textwrap

_PLACES = {
    "# at the top": ("FLAGS = None\n", 0),
    "# the input function": (
        "def input_fn(params):\n"
        "  ids = tf.sparse.from_dense([[1], [2], [3], [1]])\n"
        "  return tf.data.Dataset.from_tensors(({'a': ids}, [[1.], [0.], [1.], [0.]])).repeat()\n",
        0,
    ),
    "# in the model_fn": ("  loss += 0.\n", 2),
    "# the spec": (
        "    return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)\n",
        4,
    ),
    "# the last spec": ("  return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)\n", 2),
    "# the optimizer": ("    step = tf.train.AdamOptimizer(0.1).minimize(loss)\n", 4),
    "# the column": (
        "  column = tf.tpu.experimental.embedding_column(\n"
        "      tf.feature_column.categorical_column_with_identity('a', 10), 4)\n",
        2,
    ),
    "# the specification": (
        "  spec = estimator.tpu.experimental.EmbeddingConfigSpec(\n"
        "      feature_columns=[column],\n"
        "      optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1))\n",
        2,
    ),
    "# the estimator": (
        "  model = estimator.tpu.TPUEstimator(\n"
        "      model_fn, model_dir='model', params={'columns': [column]}, train_batch_size=4,\n"
        "      embedding_config_spec=spec)\n",
        2,
    ),
    "# its use": ("  model.train(input_fn, steps=2)\n", 2),
}

_PROGRAM = """\
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator
FLAGS = None


def input_fn(params):
  ids = tf.sparse.from_dense([[1], [2], [3], [1]])
  return tf.data.Dataset.from_tensors(({'a': ids}, [[1.], [0.], [1.], [0.]])).repeat()


def model_fn(features, labels, mode, params):
  is_training = mode == estimator.ModeKeys.TRAIN
  net = tf.keras.layers.DenseFeatures(params['columns'])(features)
  logits = tf.layers.dense(net, 1)
  loss = tf.losses.sigmoid_cross_entropy(labels, logits)
  loss += 0.
  if mode == estimator.ModeKeys.TRAIN:
    step = tf.train.AdamOptimizer(0.1).minimize(loss)
    return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)
  return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)


def main():
  column = tf.tpu.experimental.embedding_column(
      tf.feature_column.categorical_column_with_identity('a', 10), 4)
  spec = estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=[column],
      optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1))
  model = estimator.tpu.TPUEstimator(
      model_fn, model_dir='model', params={'columns': [column]}, train_batch_size=4,
      embedding_config_spec=spec)
  model.train(input_fn, steps=2)
"""


def program(example: str) -> str:
    """Returns the program with an example in its place."""
    place, _, code = example.partition("\n")
    if place == "# the program":
        return code
    old, indent = _PLACES[place]
    assert _PROGRAM.count(old) == 1, place
    return _PROGRAM.replace(old, textwrap.indent(code, " " * indent) + "\n")
