"""Legacy TPUEstimator programs with TPU embeddings, on TensorFlow 2."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator_bridge.verification.api import verify

__all__ = ["verify"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Importing the package loads no TensorFlow.
    if name == "verify":
        return importlib.import_module("estimator_bridge.verification.api").verify
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
