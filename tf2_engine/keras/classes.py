"""One class of each layer per Keras: the same code over another base class.

`tf.keras` is Keras 2 on TensorFlow 2.15, and on later versions Keras 3, or tf_keras with
TF_USE_LEGACY_KERAS=1. A model takes layers of its own Keras alone, and there may be two of them
in one program.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tf2_engine.keras.layer import EmbeddingLayer
from tf2_engine.keras.preprocessing import Keras3Outputs, PreprocessingLayer
from tf2_engine.keras.weights import Keras2Weights, Keras3Weights


def layer_for(keras: Any) -> Any:
    """Returns the class `TPUEmbedding` for models of a Keras.

    Args:
        keras: the module: `tf.keras`, `tf_keras` or `keras`.
    """
    return _class_over(keras.layers.Layer, getattr(keras, "Variable", None))


@functools.cache
def _class_over(base: Any, variable: Any) -> Any:
    # Keras 3 has a class of variables; Keras 2 uses TensorFlow's.
    weights: Any = Keras2Weights if variable is None else Keras3Weights
    members = {
        "__module__": "tf2_engine.keras",
        "__doc__": EmbeddingLayer.__doc__,
        "_keras_variable": variable,
    }
    return type("TPUEmbedding", (weights, EmbeddingLayer, base), members)


def preprocessing_for(keras: Any) -> Any:
    """Returns the class `Preprocessing` for models of a Keras.

    Args:
        keras: the module: `tf.keras`, `tf_keras` or `keras`.
    """
    return _preprocessing_over(keras.layers.Layer, hasattr(keras, "Variable"))


@functools.cache
def _preprocessing_over(base: Any, is_keras_3: bool) -> Any:
    members = {"__module__": "tf2_engine.keras", "__doc__": PreprocessingLayer.__doc__}
    own = (Keras3Outputs, PreprocessingLayer) if is_keras_3 else (PreprocessingLayer,)
    return type("Preprocessing", (*own, base), members)


def __getattr__(name: str) -> Any:
    makers = {"Preprocessing": preprocessing_for, "TPUEmbedding": layer_for}
    if name not in makers:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return makers[name](tf.keras)
