"""Heads of `tf.contrib.estimator` whose arguments come in another order than the public heads'."""

from __future__ import annotations

from collections.abc import Callable

from estimator_bridge.canned.heads import head_training
from estimator_bridge.canned.heads.regression import PoissonRegressionHead, RegressionHead
from tf2_engine.types import Object, Tensor


def regression_head(
    weight_column: Object = None,
    label_dimension: int = 1,
    loss_reduction: str = head_training.MEAN,
    loss_fn: Callable[..., Tensor] | None = None,
    inverse_link_fn: Callable[[Tensor], Tensor] | None = None,
    name: str | None = None,
) -> RegressionHead:
    """Makes a `RegressionHead`, whose arguments it takes."""
    return RegressionHead(
        label_dimension, weight_column, loss_reduction, loss_fn, inverse_link_fn, name
    )


def poisson_regression_head(
    weight_column: Object = None,
    label_dimension: int = 1,
    loss_reduction: str = head_training.MEAN,
    compute_full_loss: bool = True,
    name: str | None = None,
) -> PoissonRegressionHead:
    """Makes a `PoissonRegressionHead`, whose arguments it takes."""
    return PoissonRegressionHead(
        label_dimension, weight_column, loss_reduction, compute_full_loss, name
    )
