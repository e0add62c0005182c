"""The engine as a Keras layer, for the Keras that `tf.keras` is, and for others beside it.

    from tf2_engine.keras import TPUEmbedding          # a tf.keras.layers.Layer
    TPUEmbedding = tf2_engine.keras.layer_for(tf_keras)  # a tf_keras.layers.Layer

Names are imported when they are first used: importing the package loads no Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from tf2_engine.keras.classes import (
        Preprocessing,
        TPUEmbedding,
        layer_for,
        preprocessing_for,
    )
    from tf2_engine.keras.keras_optimizers import translate_keras_optimizer
    from tf2_engine.keras.saved_model import exportable

__all__ = [
    "Preprocessing",
    "TPUEmbedding",
    "exportable",
    "layer_for",
    "preprocessing_for",
    "translate_keras_optimizer",
]

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "classes": ["Preprocessing", "TPUEmbedding", "layer_for", "preprocessing_for"],
        "keras_optimizers": ["translate_keras_optimizer"],
        "saved_model": ["exportable"],
    },
)
