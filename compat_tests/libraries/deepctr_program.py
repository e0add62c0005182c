"""Trains DeepFM on two features, evaluates it, and predicts."""

import itertools
import json
import sys

import tensorflow as tf
from deepctr.estimator import DeepFMEstimator

COLUMNS = [
    tf.feature_column.categorical_column_with_identity(name, size)
    for name, size in (("user", 4), ("item", 3))
]


def input_fn():
    """Returns twelve pairs; those whose numbers are alike are clicked."""
    pairs = [(user, item) for user in range(4) for item in range(3)]
    users, items = (tf.constant(each, tf.int64)[:, None] for each in zip(*pairs, strict=True))
    clicks = tf.constant([[float(user == item)] for user, item in pairs])
    return tf.data.Dataset.from_tensors(({"user": users, "item": items}, clicks)).repeat(500)


deep = [tf.feature_column.embedding_column(column, 4) for column in COLUMNS]
estimator = DeepFMEstimator(
    COLUMNS, deep, dnn_hidden_units=(8,), model_dir=sys.argv[1], linear_optimizer="Adagrad"
)
before = estimator.train(input_fn, steps=1).evaluate(input_fn, steps=1)
after = estimator.train(input_fn, steps=150).evaluate(input_fn, steps=1)
chances = [float(each["pred"][0]) for each in itertools.islice(estimator.predict(input_fn), 12)]
better = after["LogLoss"] < before["LogLoss"] and all(0 < chance < 1 for chance in chances)
losses = {"before": float(before["LogLoss"]), "after": float(after["LogLoss"])}
json.dump({**losses, "better": better}, sys.stdout)
