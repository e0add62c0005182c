"""Legacy TPUEstimator programs with TPU embeddings, on TensorFlow 2."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator_bridge.declared import verifiable
    from estimator_bridge.verification.api import verify

__all__ = ["verifiable", "verify"]
__version__ = "0.1.0"


_MODULES = {"verifiable": "declared", "verify": "verification.api"}


def __getattr__(name: str) -> Any:
    # Importing the package loads no TensorFlow.
    if name in _MODULES:
        module = importlib.import_module(f"estimator_bridge.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
