"""Computes loss, predictions and metrics from logits, like the heads of `tf.estimator`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.columns import Numeric
from tf2_engine.keras.layer_bases.column_layers import numbers_of
from tf2_engine.keras.layer_settings import PassiveLayer, Untracked, keras_of
from tf2_engine.keras.saved_model import Outputs
from tf2_engine.types import Object, Tensor

Reduction = Literal["sum_over_batch_size", "sum", "mean", "sum_by_nonzero_weights"]
LossFn = Callable[..., Tensor]
HeadFeatures = Mapping[str, Object]
Inputs = dict[str, tuple[Tensor | None, ...]]
"""Maps keys to arguments for `update_state`. Metrics with the same arguments share a key."""

SERVING_DEFAULT, CLASSIFICATION = "serving_default", "classification"
REGRESSION, PREDICT = "regression", "predict"


class BatchLosses(NamedTuple):
    """The losses of the examples in a batch.

    Attributes:
        values: [batch, 1], or [batch, label_dimension] for a regression.
        weights: in the shape of `values`, or [batch, 1]; None if there is no weight column.
        labels: float32 or int64, in the shape of `values`.
    """

    values: Tensor
    weights: Tensor | None
    labels: Tensor


class HeadLayer(PassiveLayer):
    """Base class of heads: computes the weighted loss and the metrics.

    `arguments` are the subclass's own arguments, which are written to its config.
    `BinaryClassHead` describes the other arguments.
    """

    units = 1

    def __init__(
        self,
        arguments: Mapping[str, Object],
        *,
        weight_column: str | Numeric | None = None,
        reduction: Reduction = "sum_over_batch_size",
        loss_fn: LossFn | None = None,
        suffix: str = "",
        name: str | None = None,
        **options: Object,
    ) -> None:
        settings = {
            "weight_column": weight_column,
            "reduction": reduction,
            "loss_fn": loss_fn,
            "suffix": suffix,
        }
        super().__init__({**arguments, **settings}, name, **options)
        if reduction not in get_args(Reduction):
            known = ", ".join(map(repr, get_args(Reduction)))
            raise errors.InvalidSpec(
                f"`reduction`: {reduction!r} is not known. Give one of {known}."
            )
        self._reduction, self._loss_fn = reduction, loss_fn
        self.weight_column, self.suffix = weight_column, suffix
        rows = [*self._metrics_of(keras_of(self).metrics)]
        self._metric_objects: dict[str, Object] = {each.name: each for _, each in rows}
        self._fed_by = Untracked({each.name: key for key, each in rows})
        self.built = True

    @do_not_convert
    def loss(self, labels: Tensor, logits: Tensor, features: HeadFeatures | None = None) -> Tensor:
        """Computes the loss of a batch, a float32 scalar.

        Args:
            labels: [batch], or in the shape of the logits.
            logits: [batch, units] float32.
            features: the features of the batch; needed for a `weight_column`.
        """
        losses = self._of_batch(labels, logits, features)
        values = losses.values if losses.weights is None else losses.values * losses.weights
        total = tf.reduce_sum(values)
        if self._reduction == "sum":
            return total
        return tf.math.divide_no_nan(total, self._divisor(losses))

    @do_not_convert
    def update_metrics(
        self, labels: Tensor, logits: Tensor, features: HeadFeatures | None = None
    ) -> None:
        losses = self._of_batch(labels, logits, features)
        inputs: Inputs = {"losses": (losses.values, losses.weights)}
        inputs |= self._inputs_of(labels, logits, losses)
        for name, metric in self._metric_objects.items():
            metric.update_state(*inputs[self._fed_by.values[name]])

    def results(self) -> dict[str, Tensor]:
        """Returns a dict with the metrics of all batches since the last reset."""
        results = {name: metric.result() for name, metric in self._metric_objects.items()}
        results |= self._computed_results()
        ending = f"/{self.suffix}" if self.suffix else ""
        return {f"{name}{ending}": value for name, value in results.items()}

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Computes predictions from logits, [batch, units] float32, under estimators' keys."""
        raise NotImplementedError

    def signatures(self, predictions: Mapping[str, Tensor]) -> dict[str, Outputs]:
        """Maps each signature of an export to its outputs, as estimators do."""
        raise NotImplementedError

    def call(self, logits: Tensor) -> dict[str, Tensor]:
        return self.predictions(logits)

    def _of_batch(
        self, labels: Tensor, logits: Tensor, features: HeadFeatures | None
    ) -> BatchLosses:
        if not isinstance(labels, tf.SparseTensor):
            labels = tf.convert_to_tensor(labels)
        labels = self._checked_labels(labels, logits)
        losses = (
            self._losses_of(labels, logits)
            if self._loss_fn is None
            else self._of_function(self._loss_fn, labels, logits, features)
        )
        return BatchLosses(losses, self._example_weights(features), labels)

    def _of_function(
        self, loss_fn: LossFn, labels: Tensor, logits: Tensor, features: HeadFeatures | None
    ) -> Tensor:
        takes_features = "features" in inspect.signature(loss_fn).parameters
        optional = {"features": features} if takes_features else {}
        losses = loss_fn(labels=labels, logits=logits, **optional)
        expected = tf.TensorShape([logits.shape[0], self._loss_width])
        if not losses.shape.is_compatible_with(expected):
            raise errors.InvalidInput(
                f"`loss_fn` returned losses of shape {losses.shape} instead of {expected}. Return "
                f"a loss for each example, [batch, {self._loss_width}]."
            )
        return tf.ensure_shape(losses, expected)

    def _divisor(self, losses: BatchLosses) -> Tensor:
        weights = spread(losses.weights, losses.values)
        if weights is None or self._reduction == "sum_over_batch_size":
            return tf.cast(tf.size(losses.values), tf.float32)
        if self._reduction == "mean":
            return tf.reduce_sum(weights)
        return tf.math.count_nonzero(weights, dtype=tf.float32)

    @property
    def _loss_width(self) -> int:
        return 1

    def _computed_results(self) -> dict[str, Tensor]:
        return {}

    def _example_weights(self, features: HeadFeatures | None) -> Tensor | None:
        column: str | Numeric | None = self.weight_column
        if column is None:
            return None
        if isinstance(column, Numeric):
            return numbers_of(column, features or {})
        weights = tf.cast((features or {})[column], tf.float32)
        return weights[:, tf.newaxis] if weights.shape.rank == 1 else weights

    def _checked_labels(self, labels: Tensor, logits: Tensor) -> Tensor:
        raise NotImplementedError

    def _losses_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        raise NotImplementedError

    def _metrics_of(self, metrics: Object) -> Iterator[tuple[str, Object]]:
        """Yields pairs (key, metric). `_inputs_of` gives the metric's arguments under this key."""
        yield "losses", metrics.Mean(name="average_loss")

    def _inputs_of(self, labels: Tensor, logits: Tensor, losses: BatchLosses) -> Inputs:
        raise NotImplementedError


def spread(weights: Tensor | None, values: Tensor) -> Tensor | None:
    return None if weights is None else tf.broadcast_to(weights, tf.shape(values))


def in_range(labels: Tensor, count: int, message: str) -> Tensor:
    checks = [
        tf.debugging.assert_non_negative(labels, message),
        tf.debugging.assert_less_equal(labels, tf.cast(count - 1, labels.dtype), message),
    ]
    with tf.control_dependencies([each for each in checks if each is not None]):
        return tf.identity(labels)
