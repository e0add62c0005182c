"""The TF2 embedding engine: embeddings with the arithmetic of a TPU, on a TPU, CPU or GPU.

Names are imported on first use, so importing the package does not load TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

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
    from tf2_engine.packed import PackedBatch
    from tf2_engine.serving import cpu_embedding_lookup, serving_embedding_lookup, serving_table
    from tf2_engine.sparsecore_limits import SparseCoreLimits
    from tf2_engine.specs import EngineSpec, FeatureSpec, Quantization, TableSpec

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "tf2_engine.embedding": ["TPUEmbedding"],
        "tf2_engine.optimizers": [
            "FTRL",
            "OPTIMIZERS",
            "SGD",
            "Adadelta",
            "Adagrad",
            "AdagradMomentum",
            "Adam",
            "CenteredRMSProp",
            "FrequencyEstimator",
            "MDLAdagradLight",
            "Momentum",
            "Optimizer",
            "ProximalAdagrad",
            "ProximalYogi",
            "RMSProp",
        ],
        "tf2_engine.packed": ["PackedBatch"],
        "tf2_engine.serving": ["cpu_embedding_lookup", "serving_embedding_lookup", "serving_table"],
        "tf2_engine.sparsecore_limits": ["SparseCoreLimits"],
        "tf2_engine.specs": ["EngineSpec", "FeatureSpec", "Quantization", "TableSpec"],
    },
)
