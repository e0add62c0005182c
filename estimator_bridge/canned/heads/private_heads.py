"""The heads of stock's private module `canned.head`, which programs use nevertheless."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

from estimator_bridge.canned.heads.graph_heads import (
    SUM,
    GraphBinaryClassHead,
    GraphHead,
    GraphMultiClassHead,
    GraphRegressionHead,
)
from estimator_bridge.canned.heads.single_head import SingleHead
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, TPUEstimatorSpec
from estimator_bridge.runtime.program_types import Features
from tf2_engine.types import Nest, Object, Tensor


class LossSpec(NamedTuple):
    """The loss of a batch, a scalar, and its inputs; for several heads, dicts by head name."""

    training_loss: Tensor
    unreduced_loss: Nest
    weights: Nest | float
    processed_labels: Nest


class _Head:
    """Base class for heads of TensorFlow 1 that a program defines.

    A subclass must have `name`, `logits_dimension` and `create_loss`, and either
    `create_estimator_spec` or `_create_tpu_estimator_spec`. As in stock, nothing checks this.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str | None:
        """The head's name, a part of the names of metrics and summaries."""

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""

    @abc.abstractmethod
    def create_loss(
        self, features: Features, mode: str, logits: Nest, labels: Nest
    ) -> LossSpec: ...

    def create_estimator_spec(
        self,
        features: Features,
        mode: str,
        logits: Nest,
        labels: Nest = None,
        optimizer: Object = None,
        train_op_fn: Callable[[Tensor], object] | None = None,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> EstimatorSpec:
        rest = {
            "optimizer": optimizer,
            "train_op_fn": train_op_fn,
            "regularization_losses": regularization_losses,
        }
        try:
            spec = self._create_tpu_estimator_spec(features, mode, logits, labels, **rest)
        except NotImplementedError:
            raise NotImplementedError(
                "Subclasses of _Head must implement `create_estimator_spec()` or "
                f"_create_tpu_estimator_spec(). {type(self).__name__} has neither."
            ) from None
        return spec.as_estimator_spec()

    def _create_tpu_estimator_spec(self, *arguments: Object, **by_name: Object) -> TPUEstimatorSpec:
        raise NotImplementedError("TPUEstimatorSpec not available for this model head.")


class PrivateHead(GraphHead, _Head):
    """Base class of the heads that the functions of this module return."""

    create_estimator_spec = _Head.create_estimator_spec  # type: ignore[assignment]

    def create_loss(self, features: Features, mode: str, logits: Tensor, labels: Nest) -> LossSpec:
        losses = self._losses(logits, labels, features)
        return LossSpec(self._reduced(losses), losses.of_examples, losses.weights, losses.labels)


class BinaryHead(PrivateHead, GraphBinaryClassHead):
    """The private head for two classes; see `BinaryClassHead`."""


class ClassHead(PrivateHead, GraphMultiClassHead):
    """The private head for more than two classes; see `MultiClassHead`."""


class NumberHead(PrivateHead, GraphRegressionHead):
    """The private head for numbers; see `RegressionHead`."""


BINARY = "weight_column thresholds label_vocabulary loss_reduction loss_fn name"
CLASSES = "n_classes weight_column label_vocabulary loss_reduction loss_fn name"
NUMBERS = "weight_column label_dimension loss_reduction loss_fn inverse_link_fn name"
"""The arguments of the functions that make heads, in stock's order."""


def with_arguments(
    kind: type[SingleHead], names: str, loss_reduction: str
) -> Callable[..., SingleHead]:
    own = dict(inspect.signature(kind).parameters)
    own["loss_reduction"] = own["loss_reduction"].replace(default=loss_reduction)
    signature = inspect.Signature([own[name] for name in names.split()])

    def make(*values: Object, **by_name: Object) -> SingleHead:
        bound = signature.bind(*values, **by_name)
        bound.apply_defaults()
        return kind(**bound.arguments)

    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


_binary_logistic_head_with_sigmoid_cross_entropy_loss = with_arguments(BinaryHead, BINARY, SUM)
_multi_class_head_with_softmax_cross_entropy_loss = with_arguments(ClassHead, CLASSES, SUM)
_regression_head = with_arguments(NumberHead, NUMBERS, SUM)
