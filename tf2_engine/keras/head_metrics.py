"""The area under a curve as `tf.compat.v1.metrics.auc` computes it, as a metric of Keras."""

from __future__ import annotations

import functools
import types

import tensorflow as tf

from tf2_engine.types import Tensor

_EPSILON = 1e-6
"""The number that the legacy metric adds to counts before it divides."""


@functools.cache
def v1_auc(keras: types.ModuleType) -> type:
    """Returns the class of the metric for a Keras."""

    class V1AUC(keras.metrics.AUC):  # type: ignore[name-defined]
        """The area by trapezoids, under the curve of either kind.

        Keras interpolates the curve of precision and recall otherwise (Davis and Goadrich, 2006),
        and adds nothing to counts.
        """

        def __init__(self, curve: str = "ROC", name: str | None = None) -> None:
            super().__init__(curve=curve, name=name)
            self._is_roc = curve == "ROC"

        def result(self) -> Tensor:
            """Returns the area, a float32 scalar."""
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
