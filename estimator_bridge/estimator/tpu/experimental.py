"""The names of `tf.compat.v1.estimator.tpu.experimental`."""

from __future__ import annotations

from estimator_bridge.legacy.spec import EmbeddingConfigSpec

__all__ = ["EmbeddingConfigSpec"]
