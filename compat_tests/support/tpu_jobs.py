"""TPUEstimators and specs of model functions that a test writes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import estimator


def make(
    model_fn: Callable[..., Any],
    model_dir: Any,
    size: int = 8,
    *,
    namespace: Any = estimator,
    tpu: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Returns a TPUEstimator.

    Args:
        size: of the batches of all modes.
        tpu: of TPUConfig.
        config: more of RunConfig.
        options: more of the TPUEstimator.
    """
    settings = {"tpu_config": namespace.tpu.TPUConfig(**(tpu or {})), **(config or {})}
    run_config = namespace.tpu.RunConfig(model_dir=str(model_dir), **settings)
    sizes = {f"{mode}_batch_size": size for mode in ("train", "eval", "predict")}
    return namespace.tpu.TPUEstimator(model_fn, config=run_config, **{**sizes, **options})


def spec(
    mode: str, loss: Any, rate: float = 0.1, *, namespace: Any = estimator, **fields: Any
) -> Any:
    """Returns the spec of a model that gradient descent trains, with the mean of all cores."""
    optimizer = tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(rate))
    train_op = None
    if mode == "train":
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return namespace.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, **fields)
