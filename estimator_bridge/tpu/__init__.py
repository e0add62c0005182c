"""The names of `tf.compat.v1.estimator.tpu`."""

from __future__ import annotations

from estimator_bridge.legacy.estimator_spec import TPUEstimatorSpec
from estimator_bridge.legacy.run_config import InputPipelineConfig, RunConfig, TPUConfig
from estimator_bridge.runtime.tpu_estimator import TPUEstimator
from estimator_bridge.tpu import experimental

__all__ = [
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "experimental",
]
