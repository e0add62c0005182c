"""The heads of TensorFlow 1's estimators, with losses, optimizers and metrics of `tf.compat.v1`.

By default, the loss is the sum over a batch. The AUC is integrated differently from Keras's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import tensorflow.compat.v1 as tf

from estimator_bridge.canned.heads import head_checks
from estimator_bridge.canned.heads.classifier_heads import (
    ALL_CLASSES,
    BinaryClassHead,
    GraphLabelClasses,
    MultiClassHead,
    threshold_keys,
)
from estimator_bridge.canned.heads.head import (
    HeadCall,
    Losses,
    Predictions,
    SingleHead,
    check_one_way_to_train,
    predictions_of,
)
from estimator_bridge.canned.heads.multi_label import MultiLabelHead
from estimator_bridge.canned.heads.regression import RegressionHead
from estimator_bridge.canned.result_names import MetricKeys, PredictionKeys
from estimator_bridge.legacy.estimator_spec import ModeKeys, TPUEstimatorSpec
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Op, SparseTensor, Tensor

MetricOp = tuple[Tensor, Op]
MetricOps = dict[str, MetricOp]
"""Maps the name of each metric to (value, update op)."""

SUM = tf.losses.Reduction.SUM


class GraphHead(SingleHead):
    """Mixin that turns a head of TensorFlow 2 into TensorFlow 1's head for the same labels.

    Scopes and the order of ops are as in stock, because programs refer to tensors by names such as
    `head/truediv`.
    """

    _numeric_weights = False
    _reductions = tf.losses.Reduction.all()
    _range_scope = "assert_range"
    _shapes_first = True
    _label_classes = GraphLabelClasses

    def _create_tpu_estimator_spec(self, *arguments: Object, **by_name: Object) -> TPUEstimatorSpec:
        call = HeadCall(*arguments, **by_name)
        mode = call.mode
        with tf.name_scope(self._name, "head"):
            logits, predictions = self._checked_predictions(call.logits)
            if mode == ModeKeys.PREDICT:
                return self._predict_spec(predictions)
            losses = self._losses(logits, call.labels, call.features)
            batch_loss = loss = self._reduced(losses)
            regularization = None
            if call.regularization_losses:
                regularization = tf.add_n(call.regularization_losses)
                loss = tf.add_n([batch_loss, regularization])
            if mode == ModeKeys.EVAL:

                def metrics() -> MetricOps:
                    return self._named_metrics(call.labels, losses, predictions, regularization)

                return TPUEstimatorSpec(mode, predictions, loss, eval_metrics=(metrics, {}))
            train_op = _train_op(loss, call)
            summaries = {MetricKeys.LOSS: loss}
            if self._loss_reduction == SUM:
                weight = tf.reduce_sum(losses.weights * tf.ones_like(losses.of_examples))
                summaries[MetricKeys.LOSS_MEAN] = batch_loss / weight
        if regularization is not None:
            summaries[MetricKeys.LOSS_REGULARIZATION] = regularization
        with tf.name_scope(""):
            for key, value in summaries.items():
                tf.summary.scalar(self._summary_key(key), value)
        return TPUEstimatorSpec(ModeKeys.TRAIN, predictions, loss, train_op)

    def _checked_predictions(self, logits: Tensor) -> tuple[Tensor, Predictions]:
        logits = head_checks.checked_logits(logits, self.logits_dimension)
        with tf.name_scope(None, "predictions", (logits,)):
            return logits, self._predictions(logits, None)

    def _reduced(self, losses: Losses) -> Tensor:
        return tf.losses.compute_weighted_loss(
            losses.of_examples, weights=losses.weights, reduction=self._loss_reduction
        )

    def _named_metrics(
        self, labels: Nest, losses: Losses, predictions: Predictions, regularization: Tensor | None
    ) -> MetricOps:
        with self._metrics_scope():
            metrics = self._metric_ops(labels, losses, predictions)
            if regularization is not None:
                key = MetricKeys.LOSS_REGULARIZATION
                metrics[key] = tf.metrics.mean(regularization, name=key)
        return {self._summary_key(key): metric for key, metric in metrics.items()}

    def _metrics_scope(self) -> AbstractContextManager[object]:
        return tf.name_scope(None, "metrics")

    def _metric_ops(self, labels: Nest, losses: Losses, predictions: Predictions) -> MetricOps:
        raise NotImplementedError


class GraphBinaryClassHead(GraphHead, BinaryClassHead):
    """TensorFlow 1's head for two classes; see `BinaryClassHead`."""

    def _checked_predictions(self, logits: Tensor) -> tuple[Tensor, Predictions]:
        with tf.name_scope(None, "predictions", (logits,)):
            logits = head_checks.checked_logits(logits, self.logits_dimension)
            return logits, self._predictions(logits, None)

    def _metric_ops(self, labels: Nest, losses: Losses, predictions: Predictions) -> MetricOps:
        chances = predictions[PredictionKeys.LOGISTIC]
        label_mean = _spread_mean(MetricKeys.LABEL_MEAN, losses.labels, losses.weights)
        metrics = {
            MetricKeys.LOSS_MEAN: _mean_loss(losses),
            **_class_metrics(_OF_BINARY_IDS, losses, predictions),
            MetricKeys.PREDICTION_MEAN: _spread_mean(
                MetricKeys.PREDICTION_MEAN, chances, losses.weights
            ),
            MetricKeys.LABEL_MEAN: label_mean,
            MetricKeys.ACCURACY_BASELINE: _accuracy_baseline(label_mean),
            MetricKeys.AUC: _auc(MetricKeys.AUC, losses, chances),
            MetricKeys.AUC_PR: _auc(MetricKeys.AUC_PR, losses, chances, curve="PR"),
        }
        for threshold in self._thresholds:
            metrics |= _metrics_at(threshold, losses, chances)
        return metrics


class GraphMultiClassHead(GraphHead, MultiClassHead):
    """TensorFlow 1's head for more than two classes; see `MultiClassHead`."""

    _any_vocabulary = True  # as in stock, the length may differ from the number of classes
    _first_predictions = ALL_CLASSES

    def _metric_ops(self, labels: Nest, losses: Losses, predictions: Predictions) -> MetricOps:
        accuracy = _class_metrics(_OF_IDS, losses, predictions)
        return {MetricKeys.LOSS_MEAN: _mean_loss(losses), **accuracy}


class GraphRegressionHead(GraphHead, RegressionHead):
    """TensorFlow 1's head for numbers; see `RegressionHead`."""

    def _checked_predictions(self, logits: Tensor) -> tuple[Tensor, Predictions]:
        logits = head_checks.checked_logits(logits, self.logits_dimension)
        return logits, self._predictions(logits, None)

    def _metrics_scope(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def _metric_ops(self, labels: Nest, losses: Losses, predictions: Predictions) -> MetricOps:
        weights, key = losses.weights, MetricKeys.PREDICTION_MEAN
        return {
            MetricKeys.LOSS_MEAN: tf.metrics.mean(losses.of_examples, weights=weights),
            key: _spread_mean(key, predictions[PredictionKeys.PREDICTIONS], weights),
            # As in stock, these are the program's own labels, of any shape.
            MetricKeys.LABEL_MEAN: tf.metrics.mean(labels, weights=weights),
        }


class GraphMultiLabelHead(GraphHead, MultiLabelHead):
    """TensorFlow 1's `MultiLabelHead`, which does not predict class names."""

    def _indicators(self, labels: SparseTensor) -> Tensor:
        count = self.logits_dimension
        if labels.dtype == tf.string:
            ids = self._classes.ids_of(labels.values)
            known = tf.SparseTensor(labels.indices, ids, labels.dense_shape)
            return tf.to_int64(tf.sparse.to_indicator(known, count))
        message = f"labels must be an integer SparseTensor with values in [0, {count})"
        checks = (
            tf.debugging.assert_integer(labels.values, message=message),
            tf.debugging.assert_less(
                labels.values, tf.convert_to_tensor(count, labels.dtype), message=message
            ),
            tf.debugging.assert_non_negative(labels.values, message=message),
        )
        with tf.control_dependencies(checks):
            return tf.to_int64(tf.sparse.to_indicator(labels, count))

    def _predictions(self, logits: Tensor, keys: Sequence[str] | None) -> Predictions:
        key = PredictionKeys.PROBABILITIES
        makers = {PredictionKeys.LOGITS: lambda: logits, key: lambda: tf.sigmoid(logits, name=key)}
        return predictions_of(makers, keys)

    def _metric_ops(self, labels: Nest, losses: Losses, predictions: Predictions) -> MetricOps:
        chances = predictions[PredictionKeys.PROBABILITIES]
        metrics = {MetricKeys.LOSS_MEAN: _mean_loss(losses)}
        for key, curve in ((MetricKeys.AUC, "ROC"), (MetricKeys.AUC_PR, "PR")):
            metrics[key] = tf.metrics.auc(
                losses.labels, chances, losses.weights, curve=curve, name=key
            )
        for threshold in self._thresholds:
            metrics |= _metrics_at(threshold, losses, chances)
        for (mean, auc, auc_pr), of_class, own in self._of_classes(chances, losses):
            metrics[mean] = _spread_mean(mean, of_class, own.weights)
            metrics[auc] = _auc(auc, own, of_class)
            metrics[auc_pr] = _auc(auc_pr, own, of_class, curve="PR")
        return metrics


def train_op_without_updates(loss: Tensor, call: HeadCall) -> Op:
    check_one_way_to_train(call)
    if call.train_op_fn is not None:
        return call.train_op_fn(loss)
    return call.optimizer.minimize(loss, global_step=tf.train.get_global_step())


def _train_op(loss: Tensor, call: HeadCall) -> Op:
    train_op = train_op_without_updates(loss, call)
    update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    return tf.group(train_op, *update_ops) if update_ops else train_op


_OF_IDS = {MetricKeys.ACCURACY: tf.metrics.accuracy}
_OF_BINARY_IDS = {
    **_OF_IDS,
    MetricKeys.PRECISION: tf.metrics.precision,
    MetricKeys.RECALL: tf.metrics.recall,
}


def _class_metrics(
    makers: Mapping[str, Callable[..., MetricOp]], losses: Losses, predictions: Predictions
) -> MetricOps:
    ids = predictions[PredictionKeys.CLASS_IDS]
    return {key: make(losses.labels, ids, losses.weights, name=key) for key, make in makers.items()}


def _mean_loss(losses: Losses) -> MetricOp:
    key = MetricKeys.LOSS_MEAN
    return tf.metrics.mean(losses.of_examples, weights=losses.weights, name=key)


def _spread_mean(key: str, values: Tensor, weights: Tensor | float) -> MetricOp:
    with tf.name_scope(key) as scope:
        values = tf.cast(values, tf.float32)
        spread = tf_compat.broadcast_weights(weights, values)
        return tf.metrics.mean(values, weights=spread, name=scope)


def _accuracy_baseline(label_mean: MetricOp) -> MetricOp:
    value, update = label_mean
    with tf.name_scope(None, MetricKeys.ACCURACY_BASELINE):
        return (
            tf.maximum(value, 1.0 - value, name="value"),
            tf.maximum(update, 1 - update, name="update_op"),
        )


def _auc(key: str, losses: Losses, chances: Tensor, curve: str = "ROC") -> MetricOp:
    with tf.name_scope(key) as scope:
        spread = tf_compat.broadcast_weights(losses.weights, chances)
        return tf.metrics.auc(losses.labels, chances, spread, curve=curve, name=scope)


def _metrics_at(threshold: float, losses: Losses, chances: Tensor) -> MetricOps:
    labels, weights = losses.labels, losses.weights
    accuracy, *others = threshold_keys(threshold)
    with tf.name_scope(accuracy) as scope:
        is_above = tf.to_float(tf.greater_equal(chances, threshold))
        metrics = {accuracy: tf.metrics.accuracy(labels, is_above, weights, name=scope)}
    makers = (tf.metrics.precision_at_thresholds, tf.metrics.recall_at_thresholds)
    for key, make in zip(others, makers, strict=True):
        with tf.name_scope(key) as scope:
            value, update = make(labels, chances, (threshold,), weights, name=scope)
            metrics[key] = tf.squeeze(value), tf.squeeze(update)
    return metrics
