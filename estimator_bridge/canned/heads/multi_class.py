"""`MultiClassHead`: one of several classes, with a logit for each."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads import head_checks, head_training
from estimator_bridge.canned.heads.binary_class import BinaryClassHead
from estimator_bridge.canned.heads.class_predictions import class_makers, predictions_of
from estimator_bridge.canned.heads.head import Metrics, Predictions
from estimator_bridge.canned.heads.label_classes import check_vocabulary
from estimator_bridge.canned.heads.single_head import CLASSIFY, Losses, LossFn, SingleHead, keras
from estimator_bridge.canned.result_names import MetricKeys, PredictionKeys
from tf2_engine.types import Nest, Object, Tensor


class MultiClassHead(SingleHead):
    """More than two classes: the softmax of the logits gives their probabilities.

    The loss of an example is the sparse softmax cross entropy of its label and logits. Labels are
    integers in [0, n_classes), or strings of the vocabulary: [batch, 1] or [batch].

    Args:
        n_classes: the number of classes, more than 2.
        label_vocabulary: the labels as strings, one for each class.

    The other arguments are the same as in `BinaryClassHead`.

    Raises:
        InvalidInput: an argument is not possible.
    """

    _any_vocabulary = False
    _first_predictions: Sequence[str] = ()

    def __init__(
        self,
        n_classes: int,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = head_training.MEAN,
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
        # Stock's ops, even if a model_fn makes the head: TensorFlow derives the seeds of random
        # ops, and so the initial values of later variables, from the number of ops in the graph.
        is_large = tf.debugging.assert_greater(
            tf.convert_to_tensor(n_classes), 2, message="n_classes must be greater than 2"
        )
        with tf.control_dependencies([is_large]):
            tf.no_op()
        self._classes = self._label_classes(n_classes, label_vocabulary)

    def _checked_labels(self, logits: Tensor, labels: Nest) -> Tensor:
        labels = head_checks.checked_labels(labels, logits, 1)
        if self._classes.vocabulary is not None:
            if labels.dtype != tf.string:
                raise errors.InvalidInput(
                    "Labels dtype should be string if there is a vocabulary. Instead got "
                    f"{labels.dtype}."
                )
            labels = self._classes.ids_of(labels)
        elif not labels.dtype.is_integer:
            raise errors.InvalidInput(
                f"Labels dtype should be integer. Instead got {labels.dtype}. Cast them, or give "
                "a label_vocabulary."
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

    def _metrics(self) -> Metrics:
        return {}

    def _later_metrics(self) -> Metrics:
        return {MetricKeys.ACCURACY: keras.metrics.Accuracy(name=MetricKeys.ACCURACY)}

    def _update(
        self, metrics: Metrics, predictions: Predictions, labels: Nest, losses: Losses
    ) -> None:
        ids = predictions[PredictionKeys.CLASS_IDS]
        self._update_all(metrics, [MetricKeys.ACCURACY], losses, ids)


def class_head(
    n_classes: int,
    weight_column: Object,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: str,
) -> SingleHead:
    """Makes the head for two or more classes."""
    if n_classes == 2:
        return BinaryClassHead(weight_column, None, label_vocabulary, loss_reduction)
    return MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)
