"""Heads that predict numbers, counts or probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads import head_checks
from estimator_bridge.canned.heads.head import (
    MEAN,
    REGRESS,
    KerasMetrics,
    Losses,
    LossFn,
    Predictions,
    SingleHead,
    keras,
    predictions_of,
)
from estimator_bridge.canned.result_names import MetricKeys, PredictionKeys
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Tensor


class RegressionHead(SingleHead):
    """A head that predicts numbers: the logits, or a function of the logits.

    The loss of a logit is the squared difference from the label. Labels are [batch,
    label_dimension], or [batch] if label_dimension is 1; weights may have the shape of the labels.

    Args:
        loss_fn: takes labels, logits and optionally features; returns losses, [batch,
            label_dimension].
        inverse_link_fn: computes predictions from the logits; may be None.

    The other arguments are the same as in `BinaryClassHead`.
    """

    _per_logit = True

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Object = None,
        loss_reduction: str = MEAN,
        loss_fn: LossFn | None = None,
        inverse_link_fn: Callable[[Tensor], Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        if label_dimension < 1:
            raise errors.InvalidInput(
                f"Invalid label_dimension {label_dimension}. It must be at least 1."
            )
        super().__init__(label_dimension, weight_column, loss_reduction, loss_fn, name)
        self._inverse_link_fn = inverse_link_fn

    def _checked_labels(self, logits: Tensor, labels: Nest) -> Tensor:
        labels = self._dense_labels(labels, logits, self.logits_dimension)
        return tf.cast(labels, tf.float32)

    def _losses_of_examples(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.losses.mean_squared_error(labels, logits, reduction=tf.losses.Reduction.NONE)

    def _predictions(self, logits: Tensor, keys: Sequence[str] | None) -> Predictions:
        link = self._inverse_link_fn
        makers = {PredictionKeys.PREDICTIONS: lambda: link(logits) if link else logits}
        if link:
            makers[PredictionKeys.LOGITS] = lambda: logits
        return predictions_of(makers, keys)

    def _own_outputs(self, predictions: Predictions) -> dict[str, Object]:
        number: Object = tf_compat.export_output_classes()["RegressionOutput"]
        return {REGRESS: number(predictions[PredictionKeys.PREDICTIONS])}

    def _metrics(self) -> KerasMetrics:
        keys = (MetricKeys.PREDICTION_MEAN, MetricKeys.LABEL_MEAN)
        return {key: keras.metrics.Mean(name=key) for key in keys}

    def _update(
        self, metrics: KerasMetrics, predictions: Predictions, labels: Nest, losses: Losses
    ) -> None:
        # As in stock, these are the program's own labels, of any shape.
        self._metric(metrics, MetricKeys.LABEL_MEAN).update_state(
            values=labels, sample_weight=losses.weights
        )
        values = predictions[PredictionKeys.PREDICTIONS]
        self._update_mean(metrics, MetricKeys.PREDICTION_MEAN, values, losses.weights)


class PoissonRegressionHead(RegressionHead):
    """A `RegressionHead` for counts: a logit is the logarithm of a Poisson distribution's mean.

    The prediction is exp(logit), and the loss is `tf.nn.log_poisson_loss`.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Object = None,
        loss_reduction: str = MEAN,
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(
            label_dimension, weight_column, loss_reduction, self._poisson_loss, tf.exp, name
        )
        self._compute_full_loss = compute_full_loss

    def _poisson_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.nn.log_poisson_loss(labels, logits, self._compute_full_loss)


class LogisticRegressionHead(RegressionHead):
    """A `RegressionHead` for probabilities: the sigmoids of the logits. Labels are in [0, 1].

    The loss is the sigmoid cross entropy.
    """

    def __init__(
        self, weight_column: Object = None, loss_reduction: str = MEAN, name: str | None = None
    ) -> None:
        super().__init__(1, weight_column, loss_reduction, self._logistic_loss, tf.sigmoid, name)

    def _logistic_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        message = "Labels must be in range [0, 1]"
        labels = head_checks.checked_range(labels, 2, message, self._range_scope)
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
