"""The engine as a Keras layer, for the Keras that `tf.keras` is, and for others beside it.

    from tf2_engine.keras import TPUEmbedding          # a tf.keras.layers.Layer
    TPUEmbedding = tf2_engine.keras.layer_for(tf_keras)  # a tf_keras.layers.Layer

Names are imported when they are first used: importing the package loads no Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf2_engine.keras.classes import layer_for, preprocessing_for
    from tf2_engine.keras.export import exportable
    from tf2_engine.keras.translation import translate_keras_optimizer

    Preprocessing: Any
    TPUEmbedding: Any

_HOME = {
    "Preprocessing": "classes",
    "TPUEmbedding": "classes",
    "exportable": "export",
    "layer_for": "classes",
    "preprocessing_for": "classes",
    "translate_keras_optimizer": "translation",
}

__all__ = [
    "Preprocessing",
    "TPUEmbedding",
    "exportable",
    "layer_for",
    "preprocessing_for",
    "translate_keras_optimizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
