"""Metrics of heads: values at thresholds, and areas as `tf.compat.v1.metrics.auc` computes them."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.keras.heads.head_layer import BatchLosses, spread
from tf2_engine.types import Object, Tensor

_EPSILON = 1e-6
"""The number that the legacy metric adds to counts before it divides."""


@functools.cache
def v1_auc(keras: types.ModuleType) -> type:
    class V1AUC(keras.metrics.AUC):  # type: ignore[name-defined]
        """The area below a curve, from trapezoids. Unlike Keras, adds a small number to counts."""

        def __init__(self, curve: str = "ROC", name: str | None = None) -> None:
            super().__init__(curve=curve, name=name)
            self._is_roc = curve == "ROC"

        def result(self) -> Tensor:
            counts = (
                *(self.true_positives, self.false_positives),
                *(self.true_negatives, self.false_negatives),
            )
            tp, fp, tn, fn = map(tf.convert_to_tensor, counts)
            recall = (tp + _EPSILON) / (tp + fn + _EPSILON)
            if self._is_roc:
                x, y = fp / (fp + tn + _EPSILON), recall
            else:
                x, y = recall, (tp + _EPSILON) / (tp + fp + _EPSILON)
            return tf.reduce_sum((x[:-1] - x[1:]) * (y[:-1] + y[1:]) / 2.0)

    return V1AUC


_AT_THRESHOLD = "{}/positive_threshold_{:g}"


def thresholds_of(thresholds: Sequence[float]) -> list[float]:
    if not all(0.0 < each < 1.0 for each in thresholds):
        raise errors.InvalidSpec(
            f"`thresholds`: {[*thresholds]} are not all between 0 and 1. Pass probabilities."
        )
    return [*thresholds]


def metrics_at(metrics: Object, thresholds: Sequence[float]) -> Iterator[Object]:
    for each in thresholds:
        accuracy, precision, recall = _keys_at(each)
        yield metrics.BinaryAccuracy(name=accuracy, threshold=each)
        yield metrics.Precision(name=precision, thresholds=each)
        yield metrics.Recall(name=recall, thresholds=each)


def update_at(
    metrics: Mapping[str, Object],
    thresholds: Sequence[float],
    losses: BatchLosses,
    chances: Tensor,
) -> None:
    weights = losses.weights
    for each in thresholds:
        accuracy, *others = _keys_at(each)
        # The accuracy of an example is a mean over classes, so each example has one weight.
        of_examples = None if weights is None else tf.squeeze(weights, -1)
        metrics[accuracy].update_state(losses.labels, chances, of_examples)
        for key in others:
            metrics[key].update_state(losses.labels, chances, spread(weights, chances))


def _keys_at(threshold: float) -> list[str]:
    names = ("accuracy", "precision", "recall")
    return [_AT_THRESHOLD.format(name, threshold) for name in names]
