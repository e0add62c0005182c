"""The names of `tf.compat.v1.estimator.tpu`."""

from __future__ import annotations

from estimator_bridge.estimator.tpu import experimental
from estimator_bridge.legacy.estimator_spec import TPUEstimatorSpec
from estimator_bridge.legacy.run_config import InputPipelineConfig, RunConfig, TPUConfig
from estimator_bridge.runtime.estimator.tpu_estimator import TPUEstimator

__all__ = [
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "experimental",
]
