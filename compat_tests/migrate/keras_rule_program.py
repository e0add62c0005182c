"""Base programs for tests of the Keras form, and programs with the examples of its refusals.

The first line of an example says what it replaces: `# in the model_fn`, for example.
"""

from __future__ import annotations

import textwrap

_INPUT_FN = """\
def input_fn(params):
  ids = tf.sparse.from_dense([[1], [2], [3], [1]])
  return tf.data.Dataset.from_tensors(({'a': ids}, [[1.], [0.], [1.], [0.]])).repeat()
"""
_COLUMN = """\
  column = tf.tpu.experimental.embedding_column(
      tf.feature_column.categorical_column_with_identity('a', 10), 4)
"""
_SPEC = """\
  spec = estimator.tpu.experimental.EmbeddingConfigSpec(
      feature_columns=[column],
      optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1))
"""
_ESTIMATOR = """\
  model = estimator.tpu.TPUEstimator(
      model_fn, model_dir='model', params={'columns': [column]}, train_batch_size=4,
      embedding_config_spec=spec)
"""
_USE = "  model.train(input_fn, steps=2)\n"


def whole(model_fn: str, top: str = "", arguments: str = "") -> str:
    """Returns a program: an input_fn, a model_fn that starts with the tables, and a main.

    Args:
        model_fn: its body after the table lookup.
        top: code below the imports.
        arguments: further arguments of the estimator.
    """
    estimator = _ESTIMATOR.replace("embedding_config_spec", f"{arguments}embedding_config_spec")
    return f"""\
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator
{top}

{_INPUT_FN}

def model_fn(features, labels, mode, params):
  is_training = mode == estimator.ModeKeys.TRAIN
  net = tf.keras.layers.DenseFeatures(params['columns'])(features)
{model_fn}

def main():
{_COLUMN}{_SPEC}{estimator}{_USE}"""


_PLACES = {
    "# at the top": ("FLAGS = None\n", 0),
    "# the input function": (_INPUT_FN, 0),
    "# in the model_fn": ("  loss += 0.\n", 2),
    "# the spec": (
        "    return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)\n",
        4,
    ),
    "# the last spec": ("  return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)\n", 2),
    "# the optimizer": ("    step = tf.train.AdamOptimizer(0.1).minimize(loss)\n", 4),
    "# the column": (_COLUMN, 2),
    "# the specification": (_SPEC, 2),
    "# the estimator": (_ESTIMATOR, 2),
    "# its use": (_USE, 2),
}

_MODEL_FN = """\
  logits = tf.layers.dense(net, 1)
  loss = tf.losses.sigmoid_cross_entropy(labels, logits)
  loss += 0.
  if mode == estimator.ModeKeys.TRAIN:
    step = tf.train.AdamOptimizer(0.1).minimize(loss)
    return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)
  return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)
"""
_PROGRAM = whole(_MODEL_FN, top="FLAGS = None\n")


def program(example: str) -> str:
    place, _, code = example.partition("\n")
    if place == "# the program":
        return code
    old, indent = _PLACES[place]
    assert _PROGRAM.count(old) == 1, place
    return _PROGRAM.replace(old, textwrap.indent(code, " " * indent) + "\n")
