"""Runs legacy TPUEstimator programs with TPU embeddings on TensorFlow 2."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from estimator_bridge.version import __version__

if TYPE_CHECKING:
    from estimator_bridge.declared import verifiable
    from estimator_bridge.verify.api import verify

__all__ = ["verifiable", "verify"]


if not TYPE_CHECKING:  # type checkers know the submodules without `__getattr__`

    def __getattr__(name: str) -> object:
        # Importing the package must not load TensorFlow.
        if name == "verify":
            return importlib.import_module("estimator_bridge.verify")
        if name == "verifiable":
            return importlib.import_module("estimator_bridge.declared").verifiable
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
