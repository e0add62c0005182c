"""Exports of Keras models for serving: their layers, with the user's own functions over them."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from tf2_engine.types import Object

_RESOURCES = (tf.Module, tf.lookup.StaticHashTable, tf.lookup.StaticVocabularyTable, tf.Variable)


def exportable(model: Object) -> tf.Module:
    """Returns a module with the layers of a model, for `tf.saved_model.save` with `signatures`.

    Keras 3 adds a signature of its own to a model that is saved, and traces it with dense tensors,
    of float32 unless the model is functional. So it cannot save a model of SparseTensors and
    RaggedTensors, or a subclassed one of ids.
    """
    module = tf.Module()
    module.parts = list(_layers(model))
    # Of layers in layers Keras 3 tracks no variables.
    module.values = [each.value for each in model.weights if hasattr(each, "path")]
    return module


def resources_of(function: Object) -> list[Object]:
    """Returns the lookup tables and modules that a function refers to, for an export."""
    resources: list[Object] = []
    for cell in getattr(function, "__closure__", None) or ():
        value = cell.cell_contents
        if isinstance(value, _RESOURCES):
            resources.append(value)
        elif callable(value):
            resources += resources_of(value)
    return resources


def _layers(model: Object) -> Iterator[Object]:
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _layers(layer)
        else:
            yield layer
