"""Legacy TPUEstimator programs with TPU embeddings, on TensorFlow 2."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from estimator_bridge.version import __version__ as __version__
from tf2_engine import moved

if TYPE_CHECKING:
    from estimator_bridge.declared import verifiable
    from estimator_bridge.verify.api import verify

__all__ = ["verifiable", "verify"]

moved.keep_importable(
    {
        "estimator_bridge.checkpoints": "estimator_bridge.convert",
        "estimator_bridge.cluster_resolver": "estimator_bridge.run.cluster_resolver",
        "estimator_bridge.experimental": "estimator_bridge.estimator.experimental",
        "estimator_bridge.export": "estimator_bridge.estimator.export",
        "estimator_bridge.inputs": "estimator_bridge.estimator.inputs",
        "estimator_bridge.migration": "estimator_bridge.migrate",
        "estimator_bridge.rewriting": "estimator_bridge.migrate",
        "estimator_bridge.software_tpu": "estimator_bridge.run.software_tpu",
        "estimator_bridge.tpu": "estimator_bridge.estimator.tpu",
        "estimator_bridge.verification": "estimator_bridge.verify",
    }
)


if not TYPE_CHECKING:  # for which submodules are better known by their types

    def __getattr__(name: str) -> object:
        # Importing the package loads no TensorFlow.
        if name == "verify":
            return importlib.import_module("estimator_bridge.verify")
        if name == "verifiable":
            return importlib.import_module("estimator_bridge.declared").verifiable
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
