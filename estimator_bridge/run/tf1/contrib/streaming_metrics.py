"""Metrics that take predictions before labels, as those of `tf.contrib.metrics` do."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from tf2_engine.types import Object, Tensor, TensorLike

Metric = tuple[Tensor, Tensor]
"""The value, and the op that updates it."""


def _predictions_first(metric: Callable[..., Metric]) -> Callable[..., Metric]:
    @functools.wraps(metric)
    def swapped(predictions: TensorLike, labels: TensorLike, *args: Object, **kw: Object) -> Metric:
        return metric(labels, predictions, *args, **kw)

    return swapped


streaming_accuracy = _predictions_first(tf.metrics.accuracy)
streaming_auc = _predictions_first(tf.metrics.auc)
streaming_false_negatives = _predictions_first(tf.metrics.false_negatives)
streaming_false_positives = _predictions_first(tf.metrics.false_positives)
streaming_mean_absolute_error = _predictions_first(tf.metrics.mean_absolute_error)
streaming_mean_iou = _predictions_first(tf.metrics.mean_iou)
streaming_mean_squared_error = _predictions_first(tf.metrics.mean_squared_error)
streaming_precision = _predictions_first(tf.metrics.precision)
streaming_recall = _predictions_first(tf.metrics.recall)
streaming_root_mean_squared_error = _predictions_first(tf.metrics.root_mean_squared_error)
streaming_true_negatives = _predictions_first(tf.metrics.true_negatives)
streaming_true_positives = _predictions_first(tf.metrics.true_positives)


def streaming_covariance(
    predictions: TensorLike,
    labels: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Object = None,
    updates_collections: Object = None,
    name: str | None = None,
) -> Metric:
    """Returns the unbiased covariance of all pairs so far, weighted.

        value = sum(w (x - mean x) (y - mean y)) / (sum(w) - 1)

    Each batch changes the means and the sum of products as in Chan et al., 1979, which loses no
    precision to large means.
    """
    with tf.variable_scope(name, "covariance", (predictions, labels, weights)):
        x, y = tf.cast(predictions, tf.float32), tf.cast(labels, tf.float32)
        w = tf.ones_like(x) if weights is None else tf.cast(weights, tf.float32) * tf.ones_like(x)
        count, mean_x, mean_y, products = (
            _local(each) for each in ("count", "mean_prediction", "mean_label", "comoment")
        )
        batch_count = tf.reduce_sum(w)
        batch_x = tf.div_no_nan(tf.reduce_sum(w * x), batch_count)
        batch_y = tf.div_no_nan(tf.reduce_sum(w * y), batch_count)
        delta_x, delta_y = batch_x - mean_x, batch_y - mean_y
        total = count + batch_count
        share = tf.div_no_nan(batch_count, total)
        within = tf.reduce_sum(w * (x - batch_x) * (y - batch_y))
        new_products = products + within + delta_x * delta_y * share * count
        new_values = (total, mean_x + delta_x * share, mean_y + delta_y * share, new_products)
        with tf.control_dependencies(new_values):
            updates = [
                variable.assign(value)
                for variable, value in zip(
                    (count, mean_x, mean_y, products), new_values, strict=True
                )
            ]

        def covariance(pairs: Tensor, comoment: Tensor) -> Tensor:
            return tf.where(pairs < 2.0, float("nan"), comoment / (pairs - 1.0))

        value = covariance(tf.identity(count), tf.identity(products))
        with tf.control_dependencies(updates):
            update = covariance(tf.identity(total), tf.identity(new_products))
        _collect(metrics_collections, value)
        _collect(updates_collections, update)
        return value, update


def streaming_pearson_correlation(
    predictions: TensorLike,
    labels: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Object = None,
    updates_collections: Object = None,
    name: str | None = None,
) -> Metric:
    """Returns the correlation of all pairs so far: cov(x, y) / sqrt(var(x) var(y))."""
    with tf.variable_scope(name, "pearson_r", (predictions, labels, weights)):
        both = streaming_covariance(predictions, labels, weights, name="covariance")
        of_x = streaming_covariance(predictions, predictions, weights, name="variance_predictions")
        of_y = streaming_covariance(labels, labels, weights, name="variance_labels")
        value, update = (
            tf.truediv(xy, tf.sqrt(xx) * tf.sqrt(yy))
            for xy, xx, yy in zip(both, of_x, of_y, strict=True)
        )
        _collect(metrics_collections, value)
        _collect(updates_collections, update)
        return value, update


def _local(name: str) -> Tensor:
    return tf.get_variable(
        name,
        [],
        initializer=tf.zeros_initializer(),
        trainable=False,
        collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES],
        use_resource=True,
    )


def _collect(collections: Object, tensor: Tensor) -> None:
    if collections:
        tf.add_to_collections(collections, tensor)
