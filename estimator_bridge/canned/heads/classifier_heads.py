"""Heads that choose one class: `BinaryClassHead` and `MultiClassHead`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads import head_checks
from estimator_bridge.canned.heads.head import (
    CLASSIFY,
    MEAN,
    REGRESS,
    KerasMetrics,
    Losses,
    LossFn,
    Makers,
    Predictions,
    SingleHead,
    keras,
    predictions_of,
)
from estimator_bridge.canned.result_names import AT_THRESHOLD, MetricKeys, PredictionKeys
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Tensor

K = PredictionKeys
ALL_CLASSES = (K.ALL_CLASS_IDS, K.ALL_CLASSES)

_TABLES = {
    "name": (tf_compat.index_table_from_tensor, "class_id_lookup"),
    "id": (tf_compat.index_to_string_table_from_tensor, "class_string_lookup"),
}
"""For each kind of lookup table: the function that makes the table, and the table's name."""


class LabelClasses:
    """Converts class names to ids and back. Without a vocabulary, names are the ids as strings."""

    def __init__(self, count: int, vocabulary: Sequence[str] | None) -> None:
        self.count, self.vocabulary = count, vocabulary
        self._eager_tables: dict[str, Object] = {}

    def ids_of(self, names: Tensor) -> Tensor:
        return self._table("name").lookup(names)

    def names_of(self, ids: Tensor) -> Tensor:
        if not self.vocabulary:
            return tf.strings.as_string(ids, name="str_classes")
        return self._table("id").lookup(ids)

    def all_ids(self, logits: Tensor) -> Tensor:
        batch = tf.shape(logits)[0]
        return tf.tile(tf.expand_dims(tf.range(self.count), 0), [batch, 1])

    def all_names(self, logits: Tensor) -> Tensor:
        batch = tf.shape(logits)[0]
        if self.vocabulary:
            names = tf.convert_to_tensor([self.vocabulary])
        else:
            names = tf.strings.as_string(tf.expand_dims(tf.range(self.count), 0))
        return tf.tile(names, [batch, 1])

    def output(self, scores: Tensor) -> Object:
        output = tf_compat.export_output_classes()["ClassificationOutput"]
        return output(scores=scores, classes=self.all_names(scores))

    def _table(self, key: str) -> Object:
        # A table belongs to its graph. Eager calls use one table for all batches.
        tables = self._eager_tables if tf.executing_eagerly() else {}
        if key not in tables:
            if self.vocabulary is None:
                raise errors.InvalidInput(
                    "The labels are strings, but the head has no label_vocabulary. Pass the class "
                    "names as label_vocabulary."
                )
            make, name = _TABLES[key]
            tables[key] = make(vocabulary_list=tuple(self.vocabulary), name=name)
        return tables[key]


class GraphLabelClasses(LabelClasses):
    """Makes class names with the ops that TensorFlow 1's heads use."""

    def all_names(self, logits: Tensor) -> Tensor:
        batch = tf.shape(logits)[0]
        names = self.vocabulary or tf.strings.as_string(tf.range(self.count))
        return tf.tile(tf.expand_dims(names, 0), [batch, 1])


def check_vocabulary(vocabulary: Object, n_classes: int) -> None:
    if vocabulary is not None and len(vocabulary) != n_classes:
        raise errors.InvalidInput(
            '"label_vocabulary" does not have "n_classes" items. '
            f"Length of label_vocabulary must be n_classes ({n_classes}). Given: "
            f"{len(vocabulary)}, {list(vocabulary)}."
        )


def class_makers(logits: Tensor, class_logits: Tensor, classes: LabelClasses) -> Makers:
    @functools.cache
    def ids() -> Tensor:
        return tf.expand_dims(tf.argmax(class_logits, axis=-1, name=K.CLASS_IDS), axis=-1)

    return {
        K.PROBABILITIES: lambda: tf.nn.softmax(class_logits, name=K.PROBABILITIES),
        K.CLASS_IDS: ids,
        K.CLASSES: lambda: classes.names_of(ids()),
        K.ALL_CLASS_IDS: lambda: classes.all_ids(logits),
        K.ALL_CLASSES: lambda: classes.all_names(logits),
    }


def checked_thresholds(thresholds: Iterable[float] | None) -> tuple[float, ...]:
    checked = tuple(thresholds or ())
    for threshold in checked:
        if threshold <= 0.0 or threshold >= 1.0:
            raise errors.InvalidInput(
                f"thresholds not in (0, 1): {checked}. thresholds must be in (0, 1) range. Given: "
                f"{threshold}."
            )
    return checked


def threshold_keys(*thresholds: float) -> list[str]:
    keys = (MetricKeys.ACCURACY, MetricKeys.PRECISION, MetricKeys.RECALL)
    return [AT_THRESHOLD.format(key, each) for each in thresholds for key in keys]


def metrics_at(thresholds: Iterable[float], name_of: Callable[[str], str]) -> KerasMetrics:
    metrics: dict[str, Object] = {}
    for threshold in thresholds:
        accuracy, precision, recall = keys = threshold_keys(threshold)
        names = [name_of(key) for key in keys]
        metrics[accuracy] = keras.metrics.BinaryAccuracy(name=names[0], threshold=threshold)
        metrics[precision] = keras.metrics.Precision(name=names[1], thresholds=threshold)
        metrics[recall] = keras.metrics.Recall(name=names[2], thresholds=threshold)
    return metrics


class BinaryClassHead(SingleHead):
    """A head for two classes: the sigmoid of the logit is the probability of class 1.

    The loss of an example is the sigmoid cross entropy of its label and logit. Labels are 0 and 1,
    of any numeric type, or strings from the vocabulary. Labels and logits are [batch, 1] or
    [batch].

    Args:
        weight_column: a numeric feature column, or its key, with a weight for each example.
        thresholds: probabilities in (0, 1); accuracy, precision and recall are reported for each.
        loss_reduction: one of `tf.losses.Reduction`, but not NONE.
        loss_fn: takes labels, logits and optionally features; returns losses, [batch, 1].
        name: becomes a part of the names of metrics and summaries.
    """

    _label_classes = LabelClasses

    def __init__(
        self,
        weight_column: Object = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        loss_fn: LossFn | None = None,
        name: str | None = None,
    ) -> None:
        head_checks.check_list("label_vocabulary", label_vocabulary)
        super().__init__(1, weight_column, loss_reduction, loss_fn, name)
        self._thresholds = checked_thresholds(thresholds)
        self._classes = self._label_classes(2, label_vocabulary)

    def _checked_labels(self, logits: Tensor, labels: Nest) -> Tensor:
        labels = self._dense_labels(labels, logits, 1)
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

    def _metrics(self) -> KerasMetrics:
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

    def _later_metrics(self) -> KerasMetrics:
        return metrics_at(self._thresholds, self._summary_key)

    def _update(
        self, metrics: KerasMetrics, predictions: Predictions, labels: Nest, losses: Losses
    ) -> None:
        key = PredictionKeys.LOGISTIC
        # Stock computes the probabilities again, and uses the new tensor from here on.
        chances = self.predictions(predictions[PredictionKeys.LOGITS], [key])[key]
        predictions[key] = chances
        of_ids = (MetricKeys.ACCURACY, MetricKeys.PRECISION, MetricKeys.RECALL)
        self._update_all(metrics, of_ids, losses, predictions[PredictionKeys.CLASS_IDS])
        self._update_mean(metrics, MetricKeys.PREDICTION_MEAN, chances, losses.weights)
        self._update_mean(metrics, MetricKeys.LABEL_MEAN, losses.labels, losses.weights)
        # The baseline is the accuracy of always predicting the more frequent class.
        label_mean = self._metric(metrics, MetricKeys.LABEL_MEAN)
        baseline = self._metric(metrics, MetricKeys.ACCURACY_BASELINE)
        baseline.add_update(tf.no_op())  # An Estimator requires each metric to have an update.
        baseline.total = tf.maximum(label_mean.total, label_mean.count - label_mean.total)
        baseline.count = label_mean.count
        for key in (MetricKeys.AUC, MetricKeys.AUC_PR):
            spread = tf_compat.broadcast_weights(losses.weights, chances)
            self._update_all(metrics, [key], losses._replace(weights=spread), chances)

    def _update_later(
        self, metrics: KerasMetrics, predictions: Predictions, losses: Losses
    ) -> None:
        chances = predictions[PredictionKeys.LOGISTIC]
        self._update_all(metrics, threshold_keys(*self._thresholds), losses, chances)


class MultiClassHead(SingleHead):
    """A head for more than two classes: the softmax of the logits gives the classes' probabilities.

    The loss of an example is the sparse softmax cross entropy of its label and logits. Labels,
    [batch, 1] or [batch], are integers in [0, n_classes), or strings from the vocabulary. The
    arguments are the same as in `BinaryClassHead`.
    """

    _label_classes = LabelClasses
    _any_vocabulary = False
    _first_predictions: Sequence[str] = ()

    def __init__(
        self,
        n_classes: int,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        loss_fn: LossFn | None = None,
        name: str | None = None,
    ) -> None:
        if n_classes is None:
            raise errors.InvalidInput("n_classes cannot be None. Give the number of classes.")
        head_checks.check_list("label_vocabulary", label_vocabulary)
        if not self._any_vocabulary:
            check_vocabulary(label_vocabulary, n_classes)
        super().__init__(n_classes, weight_column, loss_reduction, loss_fn, name)
        if isinstance(n_classes, int) and n_classes <= 2:
            raise errors.InvalidInput(
                f"n_classes must be > 2: {n_classes}. BinaryClassHead is for two classes."
            )
        # Stock creates these ops, too. If a model_fn makes the head, they matter: TensorFlow
        # derives the seeds of random ops, and so the initial values of later variables, from the
        # number of ops in the graph.
        is_large = tf.debugging.assert_greater(
            tf.convert_to_tensor(n_classes), 2, message="n_classes must be greater than 2"
        )
        with tf.control_dependencies([is_large]):
            tf.no_op()
        self._classes = self._label_classes(n_classes, label_vocabulary)

    def _checked_labels(self, logits: Tensor, labels: Nest) -> Tensor:
        labels = self._dense_labels(labels, logits, 1)
        if self._classes.vocabulary is not None:
            if labels.dtype != tf.string:
                raise errors.InvalidInput(
                    "Labels dtype should be string if there is a vocabulary. Instead got "
                    f"{labels.dtype}."
                )
            labels = self._classes.ids_of(labels)
        elif not labels.dtype.is_integer:
            raise errors.InvalidInput(
                f"Labels dtype should be integer. Instead got {labels.dtype}. Cast the labels, or "
                "give a label_vocabulary."
            )
        return head_checks.checked_range(labels, self.logits_dimension, scope=self._range_scope)

    def _losses_of_examples(self, labels: Tensor, logits: Tensor) -> Tensor:
        losses = tf.losses.sparse_softmax_cross_entropy(
            labels, logits, reduction=tf.losses.Reduction.NONE
        )
        return tf.expand_dims(losses, axis=-1)

    def _predictions(self, logits: Tensor, keys: Sequence[str] | None) -> Predictions:
        makers = class_makers(logits, logits, self._classes)
        makers = {PredictionKeys.LOGITS: lambda: logits, **makers}
        return predictions_of(makers, keys, self._first_predictions)

    def _own_outputs(self, predictions: Predictions) -> dict[str, Object]:
        return {CLASSIFY: self._classes.output(predictions[PredictionKeys.PROBABILITIES])}

    def _metrics(self) -> KerasMetrics:
        return {}

    def _later_metrics(self) -> KerasMetrics:
        return {MetricKeys.ACCURACY: keras.metrics.Accuracy(name=MetricKeys.ACCURACY)}

    def _update(
        self, metrics: KerasMetrics, predictions: Predictions, labels: Nest, losses: Losses
    ) -> None:
        ids = predictions[PredictionKeys.CLASS_IDS]
        self._update_all(metrics, [MetricKeys.ACCURACY], losses, ids)
