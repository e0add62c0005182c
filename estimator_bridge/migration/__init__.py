"""From a legacy spec to TensorFlow 2: configs, optimizers, input columns, and what was changed."""

from __future__ import annotations

from estimator_bridge.migration.report import Change, Report
from estimator_bridge.migration.to_tf2 import TF2Embedding, to_tf2

__all__ = ["Change", "Report", "TF2Embedding", "to_tf2"]
