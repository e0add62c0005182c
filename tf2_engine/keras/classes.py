"""The layers as subclasses of the `Layer` of each Keras: the same code over another base class.

`tf.keras` is Keras 2 on TensorFlow 2.15, and on later versions Keras 3, or tf_keras with
TF_USE_LEGACY_KERAS=1. A model takes layers of its own Keras alone, and there may be two of them
in one program.
"""

from __future__ import annotations

import functools
import types

import tensorflow as tf

from tf2_engine.keras.embedding_layer import EmbeddingLayer
from tf2_engine.keras.preprocessing_layer import Keras3Outputs, PreprocessingLayer
from tf2_engine.keras.weights import Keras2Weights, Keras3Weights


def layer_for(keras: types.ModuleType) -> type:
    """Returns the class `TPUEmbedding` for models of a Keras: `tf.keras`, `tf_keras` or `keras`."""
    # Keras 3 has a class of variables; Keras 2 uses TensorFlow's.
    variable = getattr(keras, "Variable", None)
    weights = Keras2Weights if variable is None else Keras3Weights
    return _subclass("TPUEmbedding", (weights, EmbeddingLayer, keras.layers.Layer), variable)


def preprocessing_for(keras: types.ModuleType) -> type:
    """Returns the class `Preprocessing` for models of a Keras; see `layer_for`."""
    outputs = (Keras3Outputs,) if hasattr(keras, "Variable") else ()
    return _subclass("Preprocessing", (*outputs, PreprocessingLayer, keras.layers.Layer))


@functools.cache
def _subclass(name: str, bases: tuple[type, ...], variable: type | None = None) -> type:
    members = {
        "__module__": "tf2_engine.keras",
        "__doc__": bases[-2].__doc__,
        "_keras_variable": variable,
    }
    return type(name, bases, members)


def __getattr__(name: str) -> type:
    factories = {"Preprocessing": preprocessing_for, "TPUEmbedding": layer_for}
    if name not in factories:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return factories[name](tf.keras)
