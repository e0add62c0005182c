"""`MultiLabelHead`: each example may belong to any number of classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads import head_checks
from estimator_bridge.canned.heads.classifier_heads import (
    LabelClasses,
    check_vocabulary,
    checked_thresholds,
    metrics_at,
    threshold_keys,
)
from estimator_bridge.canned.heads.head import (
    CLASSIFY,
    MEAN,
    KerasMetrics,
    Losses,
    LossFn,
    Predictions,
    SingleHead,
    keras,
    predictions_of,
)
from estimator_bridge.canned.result_names import (
    OF_CLASS,
    PROBABILITY_MEAN,
    MetricKeys,
    PredictionKeys,
)
from tf2_engine.types import Nest, Object, SparseTensor, Tensor

_OF_CLASS = (PROBABILITY_MEAN, MetricKeys.AUC, MetricKeys.AUC_PR)


class MultiLabelHead(SingleHead):
    """A head for classes that do not exclude each other; sigmoids of logits are probabilities.

    The loss of an example is the sigmoid cross entropy, averaged over the classes. Labels are zeros
    and ones, [batch, n_classes], or a SparseTensor with the class ids, or names, of each example.

    `classes_for_class_based_metrics` are ids or names of classes for which metrics are also
    reported separately. The other arguments are the same as in `BinaryClassHead`.
    """

    _compared_predictions = (PredictionKeys.PROBABILITIES,)

    _label_classes = LabelClasses

    def __init__(
        self,
        n_classes: int,
        weight_column: Object = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        loss_fn: LossFn | None = None,
        classes_for_class_based_metrics: Sequence[int | str] | None = None,
        name: str | None = None,
    ) -> None:
        if n_classes is None or n_classes < 2:
            raise errors.InvalidInput(
                f"n_classes must be > 1 for multi-label classification. Given: {n_classes}."
            )
        head_checks.check_list("label_vocabulary", label_vocabulary)
        check_vocabulary(label_vocabulary, n_classes)
        super().__init__(n_classes, weight_column, loss_reduction, loss_fn, name)
        self._thresholds = checked_thresholds(thresholds)
        self._classes = self._label_classes(n_classes, label_vocabulary)
        chosen = classes_for_class_based_metrics
        self._own_metrics = {
            id_: f"class{id_}" if label_vocabulary is None else str(label_vocabulary[id_])
            for id_ in _ids(chosen or (), n_classes, label_vocabulary)
        }

    def _checked_labels(self, logits: Tensor, labels: Nest) -> Tensor:
        count = self.logits_dimension
        if isinstance(labels, tf.SparseTensor):
            labels = self._indicators(labels)
        elif labels is not None:
            message = "labels must be an integer indicator Tensor with values in [0, 1]"
            labels = tf.convert_to_tensor(labels)
            labels = head_checks.checked_range(labels, 2, message, self._range_scope)
        return self._dense_labels(labels, logits, count)

    def _indicators(self, labels: SparseTensor) -> Tensor:
        count = self.logits_dimension
        if labels.dtype == tf.string:
            ids = self._classes.ids_of(labels.values)
        elif labels.dtype.is_integer:
            message = f"labels must be an integer SparseTensor with values in [0, {count})"
            ids = head_checks.checked_range(labels.values, count, message)
        else:
            raise errors.InvalidInput(
                f"Labels dtype should be integer. Instead got {labels.dtype}. Give ids or strings."
            )
        known = tf.SparseTensor(labels.indices, ids, labels.dense_shape)
        return tf.cast(tf.sparse.to_indicator(known, count), tf.int64)

    def _losses_of_examples(self, labels: Tensor, logits: Tensor) -> Tensor:
        losses = tf.losses.sigmoid_cross_entropy(labels, logits, reduction=tf.losses.Reduction.NONE)
        return tf.reduce_mean(losses, axis=-1, keepdims=True)

    def _predictions(self, logits: Tensor, keys: Sequence[str] | None) -> Predictions:
        probabilities = PredictionKeys.PROBABILITIES
        makers = {
            PredictionKeys.LOGITS: lambda: logits,
            probabilities: lambda: tf.sigmoid(logits, name=probabilities),
            PredictionKeys.CLASSES: lambda: self._classes.all_names(logits),
        }
        return predictions_of(makers, keys)

    def _own_outputs(self, predictions: Predictions) -> dict[str, Object]:
        return {CLASSIFY: self._classes.output(predictions[PredictionKeys.PROBABILITIES])}

    def _metrics(self) -> KerasMetrics:
        return {
            MetricKeys.AUC: keras.metrics.AUC(name=MetricKeys.AUC),
            MetricKeys.AUC_PR: keras.metrics.AUC(curve="PR", name=MetricKeys.AUC_PR),
        }

    def _later_metrics(self) -> KerasMetrics:
        metrics = metrics_at(self._thresholds, self._summary_key)
        for name in self._own_metrics.values():
            mean, auc, auc_pr = (OF_CLASS.format(key, name) for key in _OF_CLASS)
            metrics[mean] = keras.metrics.Mean(name=self._summary_key(mean))
            metrics[auc] = keras.metrics.AUC(name=self._summary_key(auc))
            metrics[auc_pr] = keras.metrics.AUC(curve="PR", name=self._summary_key(auc_pr))
        return metrics

    def _update(
        self, metrics: KerasMetrics, predictions: Predictions, labels: Nest, losses: Losses
    ) -> None:
        chances = predictions[PredictionKeys.PROBABILITIES]
        self._update_all(metrics, [MetricKeys.AUC, MetricKeys.AUC_PR], losses, chances)

    def _update_later(
        self, metrics: KerasMetrics, predictions: Predictions, losses: Losses
    ) -> None:
        chances = predictions[PredictionKeys.PROBABILITIES]
        self._update_all(metrics, threshold_keys(*self._thresholds), losses, chances)
        for (mean, *areas), of_class, own_losses in self._of_classes(chances, losses):
            self._update_mean(metrics, mean, of_class, losses.weights)
            self._update_all(metrics, areas, own_losses, of_class)

    def _of_classes(
        self, chances: Tensor, losses: Losses
    ) -> Iterator[tuple[list[str], Tensor, Losses]]:
        for id_, name in self._own_metrics.items():
            outer = [tf.rank(chances) - 1]
            begin = tf.concat([tf.zeros(outer, tf.int32), [id_]], axis=0)
            size = tf.concat([-1 * tf.ones(outer, tf.int32), [1]], axis=0)
            of_class = tf.slice(chances, begin, size)
            own_losses = losses._replace(labels=tf.slice(losses.labels, begin, size))
            yield [OF_CLASS.format(key, name) for key in _OF_CLASS], of_class, own_losses


def _ids(
    classes: Sequence[int | str], n_classes: int, vocabulary: Sequence[str] | None
) -> list[int]:
    ids: list[int] = []
    for each in classes:
        if isinstance(each, str):
            if not vocabulary:
                raise errors.InvalidInput(
                    "label_vocabulary must be provided when classes_for_class_based_metrics are "
                    f"strings, like {each!r}. Pass the vocabulary, or pass ids as classes."
                )
            if each not in vocabulary:
                raise errors.InvalidInput(
                    f"classes_for_class_based_metrics: {each!r} is not in list(label_vocabulary), "
                    f"{list(vocabulary)}."
                )
            each = vocabulary.index(each)
        if each < 0 or each >= n_classes:
            raise errors.InvalidInput(
                "All classes_for_class_based_metrics must be in range "
                f"[0, {n_classes - 1}]. Given: {each}."
            )
        ids.append(each)
    return ids
