"""Functions of `tf.contrib.estimator` and stock's `canned.head` that make TensorFlow 1's heads."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge.canned.heads.composed_heads import MultiHead, merged_outputs
from estimator_bridge.canned.heads.graph_heads import (
    SUM,
    GraphBinaryClassHead,
    GraphHead,
    GraphMultiClassHead,
    GraphMultiLabelHead,
    GraphRegressionHead,
    train_op_without_updates,
)
from estimator_bridge.canned.heads.head import Head, HeadCall, SingleHead, spec_without_tpu
from estimator_bridge.canned.heads.regression import LogisticRegressionHead, PoissonRegressionHead
from estimator_bridge.canned.result_names import MetricKeys
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from estimator_bridge.runtime.program_types import Features
from tf2_engine.types import Nest, Object, Op, Tensor


class LossSpec(NamedTuple):
    """A batch's loss, and what it is computed from; for `multi_head`, dicts keyed by head name."""

    training_loss: Tensor  # a scalar
    unreduced_loss: Nest
    weights: Nest | float
    processed_labels: Nest


class _Head:
    """Base class for heads of TensorFlow 1 that a program defines.

    A subclass must define the abstract members, and either `create_estimator_spec` or
    `_create_tpu_estimator_spec`. As in stock, nothing checks this.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str | None: ...

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int: ...

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
        return spec_without_tpu("_Head", self, features, mode, logits, labels, **rest)

    _create_tpu_estimator_spec = Head._create_tpu_estimator_spec


class _PrivateHead(GraphHead, _Head):
    create_estimator_spec = _Head.create_estimator_spec  # type: ignore[assignment]

    def create_loss(self, features: Features, mode: str, logits: Tensor, labels: Nest) -> LossSpec:
        losses = self._losses(logits, labels, features)
        return LossSpec(self._reduced(losses), losses.of_examples, losses.weights, losses.labels)


class _BinaryHead(_PrivateHead, GraphBinaryClassHead):
    pass


class _ClassHead(_PrivateHead, GraphMultiClassHead):
    pass


class _NumberHead(_PrivateHead, GraphRegressionHead):
    pass


# The arguments of the functions that make heads, in stock's order.
_BINARY = "weight_column thresholds label_vocabulary loss_reduction loss_fn name"
_CLASSES = "n_classes weight_column label_vocabulary loss_reduction loss_fn name"
_NUMBERS = "weight_column label_dimension loss_reduction loss_fn inverse_link_fn name"


def _with_arguments(
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


_binary_logistic_head_with_sigmoid_cross_entropy_loss = _with_arguments(_BinaryHead, _BINARY, SUM)
_multi_class_head_with_softmax_cross_entropy_loss = _with_arguments(_ClassHead, _CLASSES, SUM)
_regression_head = _with_arguments(_NumberHead, _NUMBERS, SUM)


_MEAN = tf.losses.Reduction.SUM_OVER_BATCH_SIZE


class _MultiLabelHead(_PrivateHead, GraphMultiLabelHead):
    pass


class _PoissonHead(_NumberHead, PoissonRegressionHead):
    pass


class _LogisticHead(_NumberHead, LogisticRegressionHead):
    pass


binary_classification_head = _with_arguments(_BinaryHead, _BINARY, _MEAN)
multi_class_head = _with_arguments(_ClassHead, _CLASSES, _MEAN)
multi_label_head = _with_arguments(
    _MultiLabelHead,
    "n_classes weight_column thresholds label_vocabulary loss_reduction loss_fn "
    "classes_for_class_based_metrics name",
    _MEAN,
)
regression_head = _with_arguments(_NumberHead, _NUMBERS, _MEAN)
poisson_regression_head = _with_arguments(
    _PoissonHead, "weight_column label_dimension loss_reduction compute_full_loss name", _MEAN
)
logistic_regression_head = _with_arguments(
    _LogisticHead, "weight_column loss_reduction name", _MEAN
)


class multi_head(MultiHead, _Head):  # noqa: N801 (a function in TensorFlow 1)
    """Combines heads that share the logits of a model; see `MultiHead`.

    As in TensorFlow 1, `multi_head` takes no regularization losses. Each of the combined heads
    needs only the members of `_Head`.
    """

    def create_loss(self, features: Features, mode: str, logits: Nest, labels: Nest) -> LossSpec:
        by_head = self._by_head(logits, labels)
        heads: Mapping[str, Object] = self._heads
        losses = {
            name: head.create_loss(features, mode, by_head[name], labels[name])
            for name, head in heads.items()
        }
        factors = dict(zip(self._heads, self._weights or (None,) * len(losses), strict=True))

        def scaled(name: str, value: Tensor) -> Tensor:
            return value if factors[name] is None else tf.multiply(value, factors[name])

        return LossSpec(
            self._merged([each.training_loss for each in losses.values()]),
            {name: scaled(name, each.unreduced_loss) for name, each in losses.items()},
            {name: scaled(name, each.weights) for name, each in losses.items()},
            {name: each.processed_labels for name, each in losses.items()},
        )

    def create_estimator_spec(  # type: ignore[override]
        self,
        features: Features,
        mode: str,
        logits: Nest,
        labels: Nest = None,
        optimizer: Object = None,
        train_op_fn: Callable[[Tensor], Op] | None = None,
    ) -> EstimatorSpec:
        call = HeadCall(features, mode, logits, labels, optimizer, train_op_fn=train_op_fn)
        specs = self._specs(call)
        predictions = {
            (name, key): value
            for name, spec in specs.items()
            for key, value in spec.predictions.items()
        }
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions, export_outputs=merged_outputs(specs))
        if mode == ModeKeys.EVAL:
            return self._eval_spec(specs, predictions)
        loss = self._merged([spec.loss for spec in specs.values()])
        train_op = train_op_without_updates(loss, call)
        with tf.name_scope(""):
            tf.summary.scalar(MetricKeys.LOSS, loss)
        return EstimatorSpec(mode, predictions, loss, train_op)

    def _eval_spec(
        self, specs: Mapping[str, EstimatorSpec], predictions: Mapping[Object, Tensor]
    ) -> EstimatorSpec:
        metrics: dict[str, Object] = {}
        with tf.name_scope("merge_eval"):
            for name, spec in specs.items():
                key = f"{MetricKeys.LOSS}/{name}"
                metrics[key] = tf.metrics.mean(spec.loss, name=key)
                metrics.update(spec.eval_metric_ops or {})
            loss = self._merged([spec.loss for spec in specs.values()])
        return EstimatorSpec(ModeKeys.EVAL, predictions, loss, eval_metric_ops=metrics)
