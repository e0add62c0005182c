"""The heads of TensorFlow 1's estimators: losses and metrics of `tf.compat.v1`, in graphs.

They differ from the public heads in their loss, by default the sum over a batch, in taking
optimizers of `tf.compat.v1.train`, and in metrics: `tf.compat.v1.metrics.auc` integrates otherwise
than Keras does.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads import head_training
from estimator_bridge.canned.heads.binary_class import BinaryClassHead
from estimator_bridge.canned.heads.class_predictions import ALL_CLASSES
from estimator_bridge.canned.heads.head import HeadCall, Predictions
from estimator_bridge.canned.heads.multi_class import MultiClassHead
from estimator_bridge.canned.heads.regression import RegressionHead
from estimator_bridge.canned.heads.single_head import Losses, SingleHead
from estimator_bridge.canned.result_names import MetricKeys, PredictionKeys
from estimator_bridge.legacy.host_calls import HostCall
from tf2_engine import tf_compat
from tf2_engine.types import Object, Op, Tensor

MetricOps = dict[str, tuple[Tensor, Op]]
"""(value, update op) by name."""

SUM = tf.losses.Reduction.SUM


class GraphHead(SingleHead):
    """The shared base of the heads of TensorFlow 1; mixed into a public head."""

    _numeric_weights = False
    _reductions = tf.losses.Reduction.all()

    def _reduced(self, losses: Losses) -> Tensor:
        return tf.losses.compute_weighted_loss(
            losses.of_examples, weights=losses.weights, reduction=self._loss_reduction
        )

    def _eval_metrics(self, call: HeadCall, losses: Losses, predictions: Predictions) -> HostCall:
        def metrics() -> MetricOps:
            with tf.name_scope("metrics"):
                mean_loss = tf.metrics.mean(losses.of_examples, weights=losses.weights)
                return {
                    MetricKeys.LOSS_MEAN: mean_loss,
                    **self._metric_ops(call, losses, predictions),
                }

        return metrics, {}

    def _metric_ops(self, call: HeadCall, losses: Losses, predictions: Predictions) -> MetricOps:
        """Returns the metrics but for the mean loss."""
        raise NotImplementedError

    def _train_op(self, loss: Tensor, call: HeadCall) -> Op:
        head_training.check_one_way_to_train(call)
        if call.train_op_fn is not None:
            train_op = call.train_op_fn(loss)
        else:
            train_op = call.optimizer.minimize(loss, global_step=tf.train.get_global_step())
        update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        return tf.group(train_op, *update_ops) if update_ops else train_op

    def _add_summaries(
        self, loss: Tensor, losses: Losses, regularization_losses: Sequence[Tensor] | None
    ) -> None:
        mean = None
        if self._loss_reduction == SUM:
            weight = tf.reduce_sum(losses.weights * tf.ones_like(losses.of_examples))
            mean = loss / weight
        with tf.name_scope(""):
            tf.summary.scalar(MetricKeys.LOSS, loss)
            if mean is not None:
                tf.summary.scalar(MetricKeys.LOSS_MEAN, mean)


class GraphBinaryClassHead(GraphHead, BinaryClassHead):
    """Two classes; see `BinaryClassHead`."""

    def _metric_ops(self, call: HeadCall, losses: Losses, predictions: Predictions) -> MetricOps:
        labels, weights = losses.labels, losses.weights
        ids, chances = predictions[PredictionKeys.CLASS_IDS], predictions[PredictionKeys.LOGISTIC]
        label_mean = _spread_mean(labels, weights)
        spread = tf_compat.broadcast_weights(weights, chances)
        return {
            MetricKeys.ACCURACY: tf.metrics.accuracy(labels, ids, weights),
            MetricKeys.PRECISION: tf.metrics.precision(labels, ids, weights),
            MetricKeys.RECALL: tf.metrics.recall(labels, ids, weights),
            MetricKeys.PREDICTION_MEAN: _spread_mean(chances, weights),
            MetricKeys.LABEL_MEAN: label_mean,
            MetricKeys.ACCURACY_BASELINE: (
                tf.maximum(label_mean[0], 1 - label_mean[0]),
                tf.maximum(label_mean[1], 1 - label_mean[1]),
            ),
            MetricKeys.AUC: tf.metrics.auc(labels, chances, spread),
            MetricKeys.AUC_PR: tf.metrics.auc(labels, chances, spread, curve="PR"),
        }


class GraphMultiClassHead(GraphHead, MultiClassHead):
    """One of several classes; see `MultiClassHead`."""

    _any_vocabulary = True  # As in stock, it may have another length than there are classes.
    _first_predictions = ALL_CLASSES

    def _metric_ops(self, call: HeadCall, losses: Losses, predictions: Predictions) -> MetricOps:
        ids = predictions[PredictionKeys.CLASS_IDS]
        return {MetricKeys.ACCURACY: tf.metrics.accuracy(losses.labels, ids, losses.weights)}


class GraphRegressionHead(GraphHead, RegressionHead):
    """Numbers; see `RegressionHead`."""

    def _metric_ops(self, call: HeadCall, losses: Losses, predictions: Predictions) -> MetricOps:
        values = predictions[PredictionKeys.PREDICTIONS]
        return {
            MetricKeys.PREDICTION_MEAN: _spread_mean(values, losses.weights),
            # As stock has it: the labels as the program gave them, of any shape.
            MetricKeys.LABEL_MEAN: tf.metrics.mean(call.labels, weights=losses.weights),
        }


def graph_class_head(
    n_classes: int,
    weight_column: Object,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: str,
) -> GraphHead:
    """Returns the head of TensorFlow 1 for two classes or for more.

    Raises:
        WrongType: two classes, and the vocabulary is neither a list nor a tuple.
        InvalidInput: an argument is not possible.
    """
    if n_classes != 2:
        return GraphMultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)
    if label_vocabulary is not None and not isinstance(label_vocabulary, (list, tuple)):
        raise errors.WrongType(
            f"label_vocabulary should be a list or tuple. Given type: {type(label_vocabulary)}."
        )
    return GraphBinaryClassHead(weight_column, None, label_vocabulary, loss_reduction)


def _spread_mean(values: Tensor, weights: Tensor | float) -> tuple[Tensor, Op]:
    """Returns the mean of values, whose weights are spread over all values of an example."""
    values = tf.cast(values, tf.float32)
    return tf.metrics.mean(values, weights=tf_compat.broadcast_weights(weights, values))
