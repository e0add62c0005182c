"""Turns logits into loss, predictions and metrics, as canned estimators do, for Keras models.

They have the numbers, the keys and the shapes of the heads of `tf.estimator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.column_layers import PassiveLayer, numbers_of
from tf2_engine.keras.columns import Numeric
from tf2_engine.keras.layer_settings import Arguments, keras_of, plain
from tf2_engine.keras.signatures import OfExamples, Outputs
from tf2_engine.types import Object, Tensor

Reduction = Literal["sum_over_batch_size", "sum"]
Features = Mapping[str, Object]

SERVING_DEFAULT, CLASSIFICATION = "serving_default", "classification"
REGRESSION, PREDICT = "regression", "predict"


class BatchLosses(NamedTuple):
    """The losses of the examples of a batch.

    Attributes:
        values: [batch, 1], or [batch, label_dimension] of a regression.
        weights: the same shape or [batch, 1]; None without a weight column.
        labels: float32 or int64, as the loss takes them, of the shape of `values`.
    """

    values: Tensor
    weights: Tensor | None
    labels: Tensor


class HeadLayer(PassiveLayer):
    """The base of heads: a loss with weights, and metrics.

    Args:
        weight_column: the feature with a weight for each example, by its key or as a `Numeric`.
        reduction: "sum_over_batch_size" divides the sum of the losses by their number, "sum" does
            not.
    """

    units = 1

    def __init__(
        self,
        weight_column: str | Numeric | None,
        reduction: Reduction,
        arguments: Mapping[str, Object],
        name: str | None = None,
        **options: Object,
    ) -> None:
        super().__init__(name=name, **options)
        if reduction not in ("sum_over_batch_size", "sum"):
            raise errors.InvalidSpec(
                f"`reduction`: {reduction!r} is not known. Give 'sum_over_batch_size' or 'sum'."
            )
        weight_column = plain(weight_column)
        settings = {"weight_column": weight_column, "reduction": reduction}
        self._arguments = Arguments({**arguments, **settings})
        self._weight_column, self._reduction = weight_column, reduction
        self._metric_objects = dict(self._metrics_of(keras_of(self).metrics))
        self.built = True

    @do_not_convert
    def loss(self, labels: Tensor, logits: Tensor, features: Features | None = None) -> Tensor:
        """Returns the loss of a batch, a float32 scalar.

        Args:
            labels: [batch] or of the shape of the logits.
            logits: [batch, units] float32.
            features: those of the batch, if one holds weights.
        """
        losses = self._of_batch(labels, logits, features)
        values = losses.values if losses.weights is None else losses.values * losses.weights
        total = tf.reduce_sum(values)
        if self._reduction == "sum":
            return total
        return tf.math.divide_no_nan(total, tf.cast(tf.size(losses.values), tf.float32))

    @do_not_convert
    def update_metrics(
        self, labels: Tensor, logits: Tensor, features: Features | None = None
    ) -> None:
        """Adds a batch to the metrics; its arguments are those of `loss`."""
        losses = self._of_batch(labels, logits, features)
        self._metric_objects["average_loss"].update_state(losses.values, losses.weights)
        self._update(labels, logits, losses)

    def results(self) -> dict[str, Tensor]:
        """Returns the metrics of the batches since the last reset, by their names."""
        return {name: metric.result() for name, metric in self._metric_objects.items()}

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns the predictions for logits, [batch, units] float32, by the keys of estimators."""
        raise NotImplementedError

    def signatures(self, predictions: Mapping[str, Tensor]) -> dict[str, Outputs]:
        """Returns the outputs of an export by the names of signatures, as estimators have them."""
        raise NotImplementedError

    def call(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns the `predictions`."""
        return self.predictions(logits)

    def _of_batch(self, labels: Tensor, logits: Tensor, features: Features | None) -> BatchLosses:
        labels = self._checked_labels(tf.convert_to_tensor(labels), logits)
        return BatchLosses(self._losses_of(labels, logits), self._example_weights(features), labels)

    def _example_weights(self, features: Features | None) -> Tensor | None:
        column = self._weight_column
        if column is None:
            return None
        if isinstance(column, Numeric):
            return numbers_of(column, features or {})
        weights = tf.cast((features or {})[column], tf.float32)
        return weights[:, tf.newaxis] if weights.shape.rank == 1 else weights

    def _checked_labels(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns the labels as the loss takes them."""
        raise NotImplementedError

    def _losses_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns the loss of each example."""
        raise NotImplementedError

    def _metrics_of(self, metrics: Object) -> dict[str, Object]:
        """Returns new metrics, of the module of a Keras, by their names."""
        return {"average_loss": metrics.Mean(name="average_loss")}

    def _update(self, labels: Tensor, logits: Tensor, losses: BatchLosses) -> None:
        """Updates the metrics but for the loss; `labels` are those of the program."""
        raise NotImplementedError


class RegressionHeadLayer(HeadLayer):
    """Numbers: the loss is the squared difference of labels and logits.

    Args:
        label_dimension: how many numbers an example has.
        weight_column, reduction: see `HeadLayer`.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: str | Numeric | None = None,
        reduction: Reduction = "sum_over_batch_size",
        name: str | None = None,
        **options: Object,
    ) -> None:
        arguments = {"label_dimension": label_dimension}
        super().__init__(weight_column, reduction, arguments, name, **options)
        self.units = label_dimension

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns {"predictions": [batch, label_dimension] float32}."""
        return {"predictions": logits}

    def signatures(self, predictions: Mapping[str, Tensor]) -> dict[str, Outputs]:
        """Returns the outputs of an export by the names of signatures."""
        outputs = OfExamples({"outputs": predictions["predictions"]})
        return {SERVING_DEFAULT: outputs, REGRESSION: outputs, PREDICT: dict(predictions)}

    def _checked_labels(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.cast(tf.reshape(labels, tf.shape(logits)), tf.float32)

    def _losses_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.math.squared_difference(logits, labels)

    def _metrics_of(self, metrics: Object) -> dict[str, Object]:
        names = ("prediction/mean", "label/mean")
        return super()._metrics_of(metrics) | {name: metrics.Mean(name=name) for name in names}

    def _update(self, labels: Tensor, logits: Tensor, losses: BatchLosses) -> None:
        # As estimators have it: the labels as they are given, of any shape.
        self._metric_objects["label/mean"].update_state(labels, losses.weights)
        weights = spread(losses.weights, logits)
        self._metric_objects["prediction/mean"].update_state(logits, weights)


def spread(weights: Tensor | None, values: Tensor) -> Tensor | None:
    """Returns a weight for each of the values of an example; None without weights."""
    return None if weights is None else tf.broadcast_to(weights, tf.shape(values))
