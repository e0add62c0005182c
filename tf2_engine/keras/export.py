"""What is exported of a model for serving: its layers, and functions of one's own over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def exportable(model: Any) -> tf.Module:
    """Returns what `tf.saved_model.save` takes in place of a model, with `signatures`.

    Keras 3 adds a signature of its own to a model that is saved, and traces it with dense tensors,
    of float32 unless the model is functional: so a model of SparseTensors and RaggedTensors, or a
    subclassed one of ids, cannot be saved as it is. This holds its layers instead.
    """
    module = tf.Module()
    module.parts = list(_layers(model))
    return module


def _layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _layers(layer)
        else:
            yield layer
