"""Trains a linear classifier with adversarial regularization, and evaluates it."""

import json
import sys

import neural_structured_learning as nsl
import tensorflow as tf

v1 = tf.compat.v1


def input_fn():
    """Returns eight points on a line, and on which side of 0 they are."""
    x = tf.constant([[-2.0], [-1.0], [-0.6], [-0.2], [0.3], [0.7], [1.5], [2.5]])
    return tf.data.Dataset.from_tensors(({"x": x}, tf.cast(x > 0, tf.int64))).repeat(100)


base = v1.estimator.LinearClassifier(
    [tf.feature_column.numeric_column("x")],
    sys.argv[1],
    optimizer=lambda: v1.train.GradientDescentOptimizer(0.05),
)
config = nsl.configs.make_adv_reg_config(multiplier=0.2, adv_step_size=0.1)
estimator = nsl.estimator.add_adversarial_regularization(
    base, optimizer_fn=lambda: v1.train.GradientDescentOptimizer(0.05), adv_config=config
)
estimator.train(input_fn, steps=1)
before = estimator.evaluate(input_fn, steps=1)
estimator.train(input_fn, steps=60)
after = estimator.evaluate(input_fn, steps=1)
better = after["accuracy"] == 1.0 and after["loss"] < before["loss"]
json.dump(
    {"before": float(before["loss"]), "after": float(after["loss"]), "better": bool(better)},
    sys.stdout,
)
