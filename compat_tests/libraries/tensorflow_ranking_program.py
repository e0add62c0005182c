"""Ranks lists of four by a groupwise model, evaluates it, and predicts scores."""

import json
import sys

import tensorflow as tf
import tensorflow_ranking as tfr

FEATURES = [[[0.1], [0.9], [0.4], [0.2]], [[0.8], [0.3], [0.5], [0.1]]]
RELEVANCE = [[0.0, 2.0, 1.0, 0.0], [2.0, 0.0, 1.0, 0.0]]


def input_fn():
    """Returns two lists, whose relevance grows with their only feature."""
    rows = {"x": tf.constant(FEATURES)}, tf.constant(RELEVANCE)
    return tf.data.Dataset.from_tensors(rows).repeat(100)


def score_fn(context_features, group_features, mode, params, config):
    """Returns the score of a group of one."""
    x = tf.reshape(group_features["x"], [-1, 1])
    return tf.compat.v1.layers.dense(x, 1, kernel_initializer=tf.constant_initializer(-0.5))


def train_op_fn(loss):
    """Returns a step of Adagrad."""
    step = tf.compat.v1.train.get_global_step()
    return tf.compat.v1.train.AdagradOptimizer(0.5).minimize(loss, step)


head = tfr.head.create_ranking_head(
    loss_fn=tfr.losses.make_loss_fn("pairwise_logistic_loss"),
    eval_metric_fns={"ndcg": tfr.metrics.make_ranking_metric_fn("ndcg")},
    train_op_fn=train_op_fn,
)
model_fn = tfr.model.make_groupwise_ranking_fn(
    group_score_fn=score_fn, group_size=1, transform_fn=None, ranking_head=head
)
estimator = tf.estimator.Estimator(model_fn, sys.argv[1])
before = estimator.train(input_fn, steps=1).evaluate(input_fn, steps=1)
after = estimator.train(input_fn, steps=40).evaluate(input_fn, steps=1)
scores = next(estimator.predict(input_fn)).tolist()
better = after["ndcg"] > before["ndcg"] and scores.index(max(scores)) == 1
json.dump(
    {"before": float(before["loss"]), "after": float(after["loss"]), "better": bool(better)},
    sys.stdout,
)
