"""Exports the layers of Keras models for serving, with the user's own functions."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf2_engine import errors, small_types, tf_compat
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.types import Object

_RESOURCES = (tf.Module, tf.lookup.StaticHashTable, tf.lookup.StaticVocabularyTable, tf.Variable)


def exportable(model: Object) -> tf.Module:
    """Creates a module with the parts of a model, for `tf.saved_model.save` with `signatures`.

    The parts are the model's layers, and the modules, lookup tables and variables in its
    attributes. Keras 3 itself cannot save a model of SparseTensors or RaggedTensors, because it
    would trace its own signature with dense tensors.
    """
    module = tf.Module()
    module.parts = list(_layers(model))
    module.resources = list(_resources(model))
    # Keras 3 does not track the variables of nested layers.
    module.values = [each.value for each in model.weights if hasattr(each, "path")]
    return module


def export_saved_model(
    model: Object,
    path: str,
    signatures: Object,
    *,
    table_dtype: str | Mapping[str, str] = "float32",
) -> None:
    """Writes a SavedModel of functions of a Keras model, with tables in a small type.

        export_saved_model(model, folder, serve_examples, table_dtype="int8")

    Args:
        model: a model with `TPUEmbedding` or `ColumnEmbedding` layers, which is not changed.
        path: the folder to write.
        signatures: a tf.function with an `input_signature`, or a dict of such functions, keyed by
            the name of the signature. The functions are traced again, with the small tables.
        table_dtype: "float32", "float16", "bfloat16" or "int8", or a dict from table names to these
            types. `tf2_engine.small_types` gives bounds on the errors.

    Raises:
        InvalidSpec: a type or table is unknown, or a row is out of a type's range.
        WrongType: a signature is not a tf.function with an `input_signature`.
        OutOfOrder: the tables do not exist yet, because the model has not been called.
    """
    named = signatures if isinstance(signatures, Mapping) else {"serving_default": signatures}
    functions = {name: _untraced(name, function) for name, function in named.items()}
    with serving_in(model, table_dtype):
        tf.saved_model.save(exportable(model), path, signatures=functions)


@contextlib.contextmanager
def serving_in(model: Object, table_dtype: Object) -> Iterator[bool]:
    layers = [each for each in tf_compat.flat_layers(model) if isinstance(each, EmbeddingLayer)]
    dtypes = small_types.checked(
        table_dtype, {name for each in layers for name in each.table_names}
    )
    is_small = not set(dtypes.values()) <= {"float32"}
    with contextlib.ExitStack() as stack:
        for each in layers if is_small else ():
            of_layer = {name: dtypes[name] for name in each.table_names}
            stack.enter_context(each.serving_in(of_layer))
        yield is_small


def _untraced(name: str, function: Object) -> Object:
    signature = getattr(function, "input_signature", None)
    if signature is None or not hasattr(function, "python_function"):
        raise errors.WrongType(
            f"`signatures`: {name!r} is {function!r}. It must be a tf.function with an "
            "`input_signature`, because it is traced again with the tables of the export."
        )
    return tf.function(function.python_function, input_signature=signature)


def resources_of(function: Object) -> list[Object]:
    resources: list[Object] = []
    functions = [function]
    for each in functions:  # The list grows.
        each = getattr(each, "__func__", each)  # The function of a method.
        if not isinstance(each, types.FunctionType):
            continue
        names = inspect.getclosurevars(each)
        nonlocals = {key: value for key, value in names.nonlocals.items() if key != "__class__"}
        of_module = {
            key: value
            for key, value in names.globals.items()
            if getattr(value, "__globals__", each.__globals__) is each.__globals__
        }
        for value in (*nonlocals.values(), *of_module.values()):
            if isinstance(value, _RESOURCES) and not any(value is one for one in resources):
                resources.append(value)
            elif isinstance(value, types.FunctionType) and value not in functions:
                functions.append(value)
    return resources


def _resources(model: Object) -> Iterator[Object]:
    for name, value in vars(model).items():
        for each in _flat(value):
            is_layer = hasattr(each, "trainable_weights")
            is_of_keras = name.startswith("_") and isinstance(each, tf.Variable)
            if isinstance(each, _RESOURCES) and not (is_layer or is_of_keras):
                yield each
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _resources(layer)


def _flat(value: Object) -> Iterator[Object]:
    if isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _flat(each)
    else:
        yield value


def _layers(model: Object) -> Iterator[Object]:
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _layers(layer)
        else:
            yield layer
