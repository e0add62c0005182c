"""The TF2 embedding engine: TPU semantics on a TPU, a CPU or a GPU.

Names are imported when they are first used: importing the package loads no TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy, moved

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
        "tf2_engine.keras.export": "tf2_engine.keras.saved_model",
        "tf2_engine.keras.layer": "tf2_engine.keras.embedding_layer",
        "tf2_engine.keras.preprocessing": "tf2_engine.keras.preprocessing_layer",
        "tf2_engine.keras.tables": "tf2_engine.keras.keras_tables",
        "tf2_engine.keras.translation": "tf2_engine.keras.keras_optimizers",
        "tf2_engine.optimizers.base": "tf2_engine.optimizers.optimizer",
        "tf2_engine.preprocessing.columns": "tf2_engine.preprocessing.categorical",
        "tf2_engine.preprocessing.inputs": "tf2_engine.preprocessing.raw_features",
    }
)

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "embedding": ["TPUEmbedding"],
        "optimizers": [
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
        "quantization": ["Quantization"],
        "serving": ["cpu_embedding_lookup", "serving_embedding_lookup"],
        "specs": ["EngineSpec", "FeatureSpec", "TableSpec"],
    },
)
