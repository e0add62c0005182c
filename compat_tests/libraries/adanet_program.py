"""Learns an ensemble of linear models and networks, and evaluates it."""

import json
import sys

import adanet
import tensorflow as tf

COLUMNS = [tf.feature_column.numeric_column("x")]


def input_fn():
    """Returns points of y = x * x."""
    x = tf.constant([[-2.0], [-1.0], [0.0], [1.0], [2.0]])
    return tf.data.Dataset.from_tensors(({"x": x}, x * x)).repeat(500)


estimator = adanet.AutoEnsembleEstimator(
    head=tf.estimator.RegressionHead(),
    candidate_pool=lambda config: {
        "linear": tf.estimator.LinearEstimator(
            tf.estimator.RegressionHead(), COLUMNS, config=config
        ),
        "network": tf.estimator.DNNEstimator(
            tf.estimator.RegressionHead(), (8,), COLUMNS, config=config
        ),
    },
    max_iteration_steps=20,
    model_dir=sys.argv[1],
)
before = estimator.train(input_fn, max_steps=1).evaluate(input_fn, steps=1)
after = estimator.train(input_fn, max_steps=60).evaluate(input_fn, steps=1)
better = after["loss"] < before["loss"] and after["iteration"] > before["iteration"]
json.dump(
    {"before": float(before["loss"]), "after": float(after["loss"]), "better": better}, sys.stdout
)
