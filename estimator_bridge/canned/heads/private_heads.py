"""The heads of stock's private module `canned.head`, from which programs and libraries import."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge.canned.heads.graph_heads import (
    SUM,
    GraphBinaryClassHead,
    GraphHead,
    GraphMultiClassHead,
    GraphRegressionHead,
    MetricOps,
)
from estimator_bridge.canned.heads.head import HeadCall, Predictions
from estimator_bridge.canned.heads.single_head import Losses, LossFn
from estimator_bridge.canned.heads.thresholds import threshold_keys
from estimator_bridge.canned.result_names import MetricKeys, PredictionKeys
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, TPUEstimatorSpec
from estimator_bridge.legacy.host_calls import HostCall
from tf2_engine.types import Nest, Object, Tensor


class LossSpec(NamedTuple):
    """The loss of a batch, a scalar, and what it was computed from."""

    training_loss: Tensor
    unreduced_loss: Tensor
    weights: Tensor | float
    processed_labels: Tensor


class _Head:
    """The base class of a program's own heads of TensorFlow 1.

    A subclass has `name`, `logits_dimension` and `create_loss`, and either `create_estimator_spec`
    or `_create_tpu_estimator_spec`. As in stock, nothing checks that it has.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str | None:
        """The name, which is added to the names of metrics and summaries."""

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""

    @abc.abstractmethod
    def create_loss(
        self, features: Mapping[str, Tensor], mode: str, logits: Nest, labels: Nest
    ) -> LossSpec:
        """Returns the loss of a batch."""

    def create_estimator_spec(
        self,
        features: Mapping[str, Tensor],
        mode: str,
        logits: Nest,
        labels: Nest = None,
        optimizer: Object = None,
        train_op_fn: Callable[[Tensor], object] | None = None,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> EstimatorSpec:
        """Returns the EstimatorSpec of a model_fn; see `Head.create_estimator_spec`."""
        rest = optimizer, train_op_fn, regularization_losses
        return self._create_tpu_estimator_spec(
            features, mode, logits, labels, *rest
        ).as_estimator_spec()

    def _create_tpu_estimator_spec(self, *arguments: Object, **by_name: Object) -> TPUEstimatorSpec:
        raise NotImplementedError(
            "Subclasses of _Head must implement `create_estimator_spec()` or "
            f"_create_tpu_estimator_spec(). {type(self).__name__} has neither."
        )


class _PrivateHead(GraphHead):
    """The shared base of the private heads, which have names, unlike those of canned models."""

    def create_loss(
        self, features: Mapping[str, Tensor], mode: str, logits: Tensor, labels: Nest
    ) -> LossSpec:
        """Returns the loss of a batch, of its examples, their weights and labels."""
        losses, loss = self._loss_of(logits, labels, features, None)
        return LossSpec(loss, losses.of_examples, losses.weights, losses.labels)

    def _eval_metrics(self, call: HeadCall, losses: Losses, predictions: Predictions) -> HostCall:
        function, tensors = super()._eval_metrics(call, losses, predictions)

        def metrics() -> MetricOps:
            ops = function()
            if call.regularization_losses is not None:
                regularization = tf.metrics.mean(tf.add_n(call.regularization_losses))
                ops[MetricKeys.LOSS_REGULARIZATION] = regularization
            return {self._summary_key(key): each for key, each in ops.items()}

        return metrics, tensors

    def _add_summaries(
        self, loss: Tensor, losses: Losses, regularization_losses: Sequence[Tensor] | None
    ) -> None:
        values = {MetricKeys.LOSS: loss}
        if self._loss_reduction == SUM:
            weight = tf.reduce_sum(losses.weights * tf.ones_like(losses.of_examples))
            values[MetricKeys.LOSS_MEAN] = loss / weight
        if regularization_losses is not None:
            values[MetricKeys.LOSS_REGULARIZATION] = tf.add_n(regularization_losses)
        with tf.name_scope(""):
            for key, value in values.items():
                tf.summary.scalar(self._summary_key(key), value)


class _BinaryHead(_PrivateHead, GraphBinaryClassHead):
    def _metric_ops(self, call: HeadCall, losses: Losses, predictions: Predictions) -> MetricOps:
        ops = super()._metric_ops(call, losses, predictions)
        chances = predictions[PredictionKeys.LOGISTIC]
        for threshold in self._thresholds:
            accuracy, precision, recall = threshold_keys(threshold)
            reached = tf.cast(chances >= threshold, tf.float32)
            ops[accuracy] = tf.metrics.accuracy(losses.labels, reached, losses.weights)
            of_one = losses.labels, chances, (threshold,), losses.weights
            value, update = tf.metrics.precision_at_thresholds(*of_one)
            ops[precision] = tf.squeeze(value), tf.squeeze(update)
            value, update = tf.metrics.recall_at_thresholds(*of_one)
            ops[recall] = tf.squeeze(value), tf.squeeze(update)
        return ops


class _MultiClassHead(_PrivateHead, GraphMultiClassHead):
    pass


class _RegressionHead(_PrivateHead, GraphRegressionHead):
    pass


def _binary_logistic_head_with_sigmoid_cross_entropy_loss(
    weight_column: Object = None,
    thresholds: Iterable[float] | None = None,
    label_vocabulary: Sequence[str] | None = None,
    loss_reduction: str = SUM,
    loss_fn: LossFn | None = None,
    name: str | None = None,
) -> GraphHead:
    return _BinaryHead(weight_column, thresholds, label_vocabulary, loss_reduction, loss_fn, name)


def _multi_class_head_with_softmax_cross_entropy_loss(
    n_classes: int,
    weight_column: Object = None,
    label_vocabulary: Sequence[str] | None = None,
    loss_reduction: str = SUM,
    loss_fn: LossFn | None = None,
    name: str | None = None,
) -> GraphHead:
    return _MultiClassHead(
        n_classes, weight_column, label_vocabulary, loss_reduction, loss_fn, name
    )


def _regression_head(
    weight_column: Object = None,
    label_dimension: int = 1,
    loss_reduction: str = SUM,
    loss_fn: LossFn | None = None,
    inverse_link_fn: Callable[[Tensor], Tensor] | None = None,
    name: str | None = None,
) -> GraphHead:
    return _RegressionHead(
        label_dimension, weight_column, loss_reduction, loss_fn, inverse_link_fn, name
    )
