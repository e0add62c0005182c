"""The TF2 embedding engine: TPU semantics on a TPU, a CPU or a GPU."""

from __future__ import annotations

from tf2_engine.embedding import TPUEmbedding
from tf2_engine.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, Optimizer
from tf2_engine.specs import EngineSpec, FeatureSpec, TableSpec

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
