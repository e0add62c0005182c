"""The TF2 embedding engine: TPU semantics on a TPU, a CPU or a GPU.

Names are imported when they are first used: importing the package loads no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf2_engine.embedding import TPUEmbedding
    from tf2_engine.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, Optimizer
    from tf2_engine.specs import EngineSpec, FeatureSpec, TableSpec

_HOME = {
    "TPUEmbedding": "embedding",
    "OPTIMIZERS": "optimizers",
    "SGD": "optimizers",
    "Adagrad": "optimizers",
    "Adam": "optimizers",
    "Optimizer": "optimizers",
    "EngineSpec": "specs",
    "FeatureSpec": "specs",
    "TableSpec": "specs",
}

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "EngineSpec",
    "FeatureSpec",
    "Optimizer",
    "TPUEmbedding",
    "TableSpec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
