"""The heads of stock's private module `canned.head`, from which programs and libraries import."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from estimator_bridge.canned.heads.graph_heads import (
    SUM,
    GraphBinaryClassHead,
    GraphHead,
    GraphMultiClassHead,
    GraphRegressionHead,
)
from estimator_bridge.canned.heads.single_head import LossFn
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, TPUEstimatorSpec
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
    or `_create_tpu_estimator_spec`. As in stock, this is not checked.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str | None:
        """Added to the names of metrics and summaries."""

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""

    @abc.abstractmethod
    def create_loss(
        self, features: Mapping[str, Tensor], mode: str, logits: Nest, labels: Nest
    ) -> LossSpec:
        """Computes the loss of a batch."""

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
        """Makes the EstimatorSpec of a model_fn; see `Head.create_estimator_spec`."""
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
    """The shared base of the private heads, which also compute the loss of a batch alone."""

    def create_loss(
        self, features: Mapping[str, Tensor], mode: str, logits: Tensor, labels: Nest
    ) -> LossSpec:
        """Computes the loss of a batch, and what it consists of."""
        losses = self._losses(logits, labels, features)
        return LossSpec(self._reduced(losses), losses.of_examples, losses.weights, losses.labels)


class _BinaryHead(_PrivateHead, GraphBinaryClassHead):
    pass


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
