"""The TF2 embedding engine: TPU semantics on a TPU, a CPU or a GPU.

Names are imported when they are first used: importing the package loads no TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy, moved

if TYPE_CHECKING:
    from tf2_engine.embedding import TPUEmbedding as TPUEmbedding
    from tf2_engine.optimizers import *  # noqa: F403 - every optimizer, listed there
    from tf2_engine.optimizers import OPTIMIZERS as OPTIMIZERS
    from tf2_engine.packed import PackedBatch as PackedBatch
    from tf2_engine.quantization import Quantization as Quantization
    from tf2_engine.serving import cpu_embedding_lookup as cpu_embedding_lookup
    from tf2_engine.serving import serving_embedding_lookup as serving_embedding_lookup
    from tf2_engine.serving_tables import serving_table as serving_table
    from tf2_engine.sparsecore_limits import SparseCoreLimits as SparseCoreLimits
    from tf2_engine.specs import EngineSpec as EngineSpec
    from tf2_engine.specs import FeatureSpec as FeatureSpec
    from tf2_engine.specs import TableSpec as TableSpec

moved.keep_importable(
    {
        "tf2_engine.columns": "tf2_engine.tpu_columns",
        "tf2_engine.drivers": "tf2_engine.backends",
        "tf2_engine.drivers.base": "tf2_engine.backends.interface",
        "tf2_engine.drivers.tpu": "tf2_engine.backends.tpu.driver",
        "tf2_engine.keras.export": "tf2_engine.keras.saved_model",
        "tf2_engine.keras.layer": "tf2_engine.keras.layer_bases.embedding_layer",
        "tf2_engine.keras.preprocessing": "tf2_engine.keras.layer_bases.preprocessing_layer",
        "tf2_engine.keras.tables": "tf2_engine.keras.keras_tables",
        "tf2_engine.keras.translation": "tf2_engine.keras.keras_optimizers",
        "tf2_engine.optimizers.base": "tf2_engine.optimizers.optimizer",
        "tf2_engine.training.events": "tf2_engine.summaries.events",
        "tf2_engine.preprocessing.columns": "tf2_engine.preprocessing.categorical",
        "tf2_engine.preprocessing.inputs": "tf2_engine.preprocessing.raw_features",
        "tf2_engine.preprocessing.vocabularies": "tf2_engine.preprocessing.categorical",
    }
)

__getattr__, __dir__ = lazy.exports(__name__)
