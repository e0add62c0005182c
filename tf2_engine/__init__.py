"""The TF2 embedding engine: TPU semantics on a TPU, a CPU or a GPU.

Names are imported when they are first used: importing the package loads no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tf2_engine import moved

if TYPE_CHECKING:
    from tf2_engine.embedding import TPUEmbedding
    from tf2_engine.optimizers import (
        FTRL,
        OPTIMIZERS,
        SGD,
        Adadelta,
        Adagrad,
        AdagradMomentum,
        Adam,
        CenteredRMSProp,
        FrequencyEstimator,
        MDLAdagradLight,
        Momentum,
        Optimizer,
        ProximalAdagrad,
        ProximalYogi,
        RMSProp,
    )
    from tf2_engine.quantization import Quantization
    from tf2_engine.serving import cpu_embedding_lookup, serving_embedding_lookup
    from tf2_engine.specs import EngineSpec, FeatureSpec, TableSpec

_HOME = {
    "TPUEmbedding": "embedding",
    "cpu_embedding_lookup": "serving",
    "serving_embedding_lookup": "serving",
    "OPTIMIZERS": "optimizers",
    "FTRL": "optimizers",
    "SGD": "optimizers",
    "Adadelta": "optimizers",
    "Adagrad": "optimizers",
    "AdagradMomentum": "optimizers",
    "Adam": "optimizers",
    "CenteredRMSProp": "optimizers",
    "FrequencyEstimator": "optimizers",
    "MDLAdagradLight": "optimizers",
    "Momentum": "optimizers",
    "Optimizer": "optimizers",
    "ProximalAdagrad": "optimizers",
    "ProximalYogi": "optimizers",
    "RMSProp": "optimizers",
    "Quantization": "quantization",
    "EngineSpec": "specs",
    "FeatureSpec": "specs",
    "TableSpec": "specs",
}

__all__ = [
    "FTRL",
    "OPTIMIZERS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "CenteredRMSProp",
    "EngineSpec",
    "FeatureSpec",
    "FrequencyEstimator",
    "MDLAdagradLight",
    "Momentum",
    "Optimizer",
    "ProximalAdagrad",
    "ProximalYogi",
    "Quantization",
    "RMSProp",
    "TPUEmbedding",
    "TableSpec",
    "cpu_embedding_lookup",
    "serving_embedding_lookup",
]

moved.keep_importable(
    {
        "tf2_engine.drivers": "tf2_engine.backends",
        "tf2_engine.drivers.base": "tf2_engine.backends.interface",
        "tf2_engine.drivers.tpu": "tf2_engine.backends.tpu.driver",
        "tf2_engine.optimizers.base": "tf2_engine.optimizers.optimizer",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
