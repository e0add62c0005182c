"""The heads of `tf.contrib.estimator`, for estimators and optimizers of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge.canned.heads.graph_heads import GraphMultiLabelHead, train_op_without_updates
from estimator_bridge.canned.heads.head import HeadCall
from estimator_bridge.canned.heads.multi_head import MultiHead, merged_outputs
from estimator_bridge.canned.heads.private_heads import (
    BINARY,
    CLASSES,
    NUMBERS,
    BinaryHead,
    ClassHead,
    LossSpec,
    NumberHead,
    PrivateHead,
    _Head,
    with_arguments,
)
from estimator_bridge.canned.heads.regression import LogisticRegressionHead, PoissonRegressionHead
from estimator_bridge.canned.result_names import MetricKeys
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from estimator_bridge.runtime.program_types import Features
from tf2_engine.types import Nest, Object, Op, Tensor

_MEAN = tf.losses.Reduction.SUM_OVER_BATCH_SIZE


class _MultiLabelHead(PrivateHead, GraphMultiLabelHead):
    pass


class _PoissonHead(NumberHead, PoissonRegressionHead):
    pass


class _LogisticHead(NumberHead, LogisticRegressionHead):
    pass


binary_classification_head = with_arguments(BinaryHead, BINARY, _MEAN)
multi_class_head = with_arguments(ClassHead, CLASSES, _MEAN)
multi_label_head = with_arguments(
    _MultiLabelHead,
    "n_classes weight_column thresholds label_vocabulary loss_reduction loss_fn "
    "classes_for_class_based_metrics name",
    _MEAN,
)
regression_head = with_arguments(NumberHead, NUMBERS, _MEAN)
poisson_regression_head = with_arguments(
    _PoissonHead, "weight_column label_dimension loss_reduction compute_full_loss name", _MEAN
)
logistic_regression_head = with_arguments(_LogisticHead, "weight_column loss_reduction name", _MEAN)


class multi_head(MultiHead, _Head):  # noqa: N801 (a function in TensorFlow 1)
    """Combines heads that share the logits of a model; see `MultiHead`.

    As in TensorFlow 1, it takes no regularization losses. The combined heads may be defined by the
    program, and need only the members of `_Head`.
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
