"""Runs legacy TPUEstimator programs with TPU embeddings on TensorFlow 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator_bridge.version import __version__
from tf2_engine import lazy

if TYPE_CHECKING:
    from estimator_bridge.declared import verifiable
    from estimator_bridge.verification.api import verify

__all__ = ["verifiable", "verify"]


if not TYPE_CHECKING:  # type checkers know the submodules without `__getattr__`
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "estimator_bridge.declared": ["verifiable"],
            "estimator_bridge.verification.api": ["verify"],
        },
    )
