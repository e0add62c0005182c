"""Heads for regression, with real numbers, counts or probabilities as labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.heads.head_layer import (
    PREDICT,
    REGRESSION,
    SERVING_DEFAULT,
    BatchLosses,
    HeadLayer,
    Inputs,
    in_range,
    spread,
)
from tf2_engine.keras.saved_model import OfExamples, Outputs
from tf2_engine.types import Object, Tensor

Link = Callable[[Tensor], Tensor]


class NumberHeadLayer(HeadLayer):
    """Base class of heads for numbers. `link`, if given, computes predictions from logits."""

    def __init__(
        self,
        arguments: Mapping[str, Object],
        units: int,
        link: Link | None,
        **options: Object,
    ) -> None:
        super().__init__(arguments, **options)
        self.units, self._link = units, link

    @do_not_convert
    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns "predictions", [batch, label_dimension] float32, and "logits" if they differ."""
        if self._link is None:
            return {"predictions": logits}
        return {"predictions": self._link(logits), "logits": logits}

    def signatures(self, predictions: Mapping[str, Tensor]) -> dict[str, Outputs]:
        outputs = OfExamples({"outputs": predictions["predictions"]})
        return {SERVING_DEFAULT: outputs, REGRESSION: outputs, PREDICT: dict(predictions)}

    def _checked_labels(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.cast(tf.reshape(labels, tf.shape(logits)), tf.float32)

    @property
    def _loss_width(self) -> int:
        return self.units

    def _metrics_of(self, metrics: Object) -> Iterator[tuple[str, Object]]:
        yield from super()._metrics_of(metrics)
        yield "predictions", metrics.Mean(name="prediction/mean")
        yield "labels", metrics.Mean(name="label/mean")

    def _inputs_of(self, labels: Tensor, logits: Tensor, losses: BatchLosses) -> Inputs:
        values = self.predictions(logits)["predictions"]
        # As in estimators, labels may have any shape here.
        return {
            "predictions": (values, spread(losses.weights, values)),
            "labels": (labels, losses.weights),
        }


class RegressionHeadLayer(NumberHeadLayer):
    """A head for numbers. The loss is the squared difference between labels and logits.

    Args:
        inverse_link_fn: computes predictions from logits. By default the logits are the
            predictions.
        options: as in `BinaryClassHead`.
    """

    def __init__(
        self, label_dimension: int = 1, inverse_link_fn: Link | None = None, **options: Object
    ) -> None:
        arguments = {"label_dimension": label_dimension, "inverse_link_fn": inverse_link_fn}
        super().__init__(arguments, label_dimension, inverse_link_fn, **options)

    def _losses_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.math.squared_difference(logits, labels)


class PoissonRegressionHeadLayer(NumberHeadLayer):
    """A head for counts. A logit is the logarithm of the mean of a Poisson distribution.

    The prediction is exp(logit), and the loss is `tf.nn.log_poisson_loss`.

    Args:
        compute_full_loss: whether to add the term that does not depend on logits, in Stirling's
            approximation.
        options: as in `BinaryClassHead`, without `loss_fn`.
    """

    def __init__(
        self, label_dimension: int = 1, compute_full_loss: bool = True, **options: Object
    ) -> None:
        arguments = {"label_dimension": label_dimension, "compute_full_loss": compute_full_loss}
        super().__init__(arguments, label_dimension, tf.exp, **options)

    def _losses_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        is_full = self._arguments.values["compute_full_loss"]
        return tf.nn.log_poisson_loss(labels, logits, is_full)


class LogisticRegressionHeadLayer(NumberHeadLayer):
    """A head for probabilities. Labels are in [0, 1]; predictions are the sigmoids of the logits.

    The loss is the sigmoid cross entropy. Options are as in `BinaryClassHead`, without `loss_fn`.
    """

    def __init__(self, **options: Object) -> None:
        super().__init__({}, 1, tf.sigmoid, **options)

    def _checked_labels(self, labels: Tensor, logits: Tensor) -> Tensor:
        return in_range(super()._checked_labels(labels, logits), 2, "Labels must be in [0, 1].")

    def _losses_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
