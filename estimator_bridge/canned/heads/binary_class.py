"""`BinaryClassHead`: two classes, told apart by one logit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.canned.heads import head_checks, head_training
from estimator_bridge.canned.heads.class_predictions import class_makers, predictions_of
from estimator_bridge.canned.heads.head import Metrics, Predictions
from estimator_bridge.canned.heads.single_head import (
    CLASSIFY,
    REGRESS,
    Losses,
    LossFn,
    SingleHead,
    keras,
)
from estimator_bridge.canned.heads.thresholds import (
    checked_thresholds,
    metrics_at,
    threshold_keys,
)
from estimator_bridge.canned.result_names import MetricKeys, PredictionKeys
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Tensor


class BinaryClassHead(SingleHead):
    """Two classes: the logit's sigmoid is the probability of class 1.

    The loss of an example is the sigmoid cross entropy of its label and logit. Labels are 0 and 1,
    of any numeric type, or strings of the vocabulary: [batch, 1] or [batch], as the logits.

    Args:
        weight_column: a numeric feature column, or its key, with a weight for each example.
        thresholds: probabilities in (0, 1) at which accuracy, precision and recall are reported.
        label_vocabulary: the two labels as strings.
        loss_reduction: one of `tf.losses.Reduction`, but not NONE.
        loss_fn: takes labels, logits and optionally features; returns losses, [batch, 1].
        name: added to the names of metrics and summaries.

    Raises:
        InvalidInput: an argument is not possible.
    """

    def __init__(
        self,
        weight_column: Object = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = head_training.MEAN,
        loss_fn: LossFn | None = None,
        name: str | None = None,
    ) -> None:
        head_checks.check_list("label_vocabulary", label_vocabulary)
        super().__init__(1, weight_column, loss_reduction, loss_fn, name)
        self._thresholds = checked_thresholds(thresholds)
        self._classes = self._label_classes(2, label_vocabulary)

    def _checked_labels(self, logits: Tensor, labels: Nest) -> Tensor:
        labels = head_checks.checked_labels(labels, logits, 1)
        if self._classes.vocabulary is not None:
            labels = self._classes.ids_of(labels)
        labels = tf.cast(labels, tf.float32)
        return head_checks.checked_range(labels, 2, scope=self._range_scope)

    def _losses_of_examples(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def _predictions(self, logits: Tensor, keys: Sequence[str] | None) -> Predictions:
        zeros = tf.zeros_like(logits)
        of_both = tf.concat([zeros, logits], axis=-1, name="two_class_logits")
        makers = {
            PredictionKeys.LOGITS: lambda: logits,
            PredictionKeys.LOGISTIC: lambda: tf.sigmoid(logits, name=PredictionKeys.LOGISTIC),
            **class_makers(logits, of_both, self._classes),
        }
        return predictions_of(makers, keys)

    def _own_outputs(self, predictions: Predictions) -> dict[str, Object]:
        classes = self._classes.output(predictions[PredictionKeys.PROBABILITIES])
        number: Object = tf_compat.export_output_classes()["RegressionOutput"]
        return {CLASSIFY: classes, REGRESS: number(predictions[PredictionKeys.LOGISTIC])}

    def _metrics(self) -> Metrics:
        return {
            MetricKeys.ACCURACY: keras.metrics.Accuracy(name=MetricKeys.ACCURACY),
            MetricKeys.PRECISION: keras.metrics.Precision(name=MetricKeys.PRECISION),
            MetricKeys.RECALL: keras.metrics.Recall(name=MetricKeys.RECALL),
            MetricKeys.PREDICTION_MEAN: keras.metrics.Mean(name=MetricKeys.PREDICTION_MEAN),
            MetricKeys.LABEL_MEAN: keras.metrics.Mean(name=MetricKeys.LABEL_MEAN),
            MetricKeys.ACCURACY_BASELINE: keras.metrics.Mean(name=MetricKeys.ACCURACY_BASELINE),
            MetricKeys.AUC: keras.metrics.AUC(name=MetricKeys.AUC),
            MetricKeys.AUC_PR: keras.metrics.AUC(curve="PR", name=MetricKeys.AUC_PR),
        }

    def _later_metrics(self) -> Metrics:
        return metrics_at(self._thresholds, self._summary_key)

    def _update(
        self, metrics: Metrics, predictions: Predictions, labels: Nest, losses: Losses
    ) -> None:
        key = PredictionKeys.LOGISTIC
        # Stock computes it again, and uses it for the metrics after the regularization, too.
        chances = self.predictions(predictions[PredictionKeys.LOGITS], [key])[key]
        predictions[key] = chances
        of_ids = (MetricKeys.ACCURACY, MetricKeys.PRECISION, MetricKeys.RECALL)
        self._update_all(metrics, of_ids, losses, predictions[PredictionKeys.CLASS_IDS])
        self._update_mean(metrics, MetricKeys.PREDICTION_MEAN, chances, losses.weights)
        self._update_mean(metrics, MetricKeys.LABEL_MEAN, losses.labels, losses.weights)
        # The accuracy of always predicting the more frequent class, from the mean of the labels.
        label_mean = self._metric(metrics, MetricKeys.LABEL_MEAN)
        baseline = self._metric(metrics, MetricKeys.ACCURACY_BASELINE)
        baseline.add_update(tf.no_op())  # An Estimator requires metrics to have an update.
        baseline.total = tf.maximum(label_mean.total, label_mean.count - label_mean.total)
        baseline.count = label_mean.count
        for key in (MetricKeys.AUC, MetricKeys.AUC_PR):
            spread = tf_compat.broadcast_weights(losses.weights, chances)
            self._update_all(metrics, [key], losses._replace(weights=spread), chances)

    def _update_later(self, metrics: Metrics, predictions: Predictions, losses: Losses) -> None:
        chances = predictions[PredictionKeys.LOGISTIC]
        self._update_all(metrics, threshold_keys(*self._thresholds), losses, chances)
