"""Exports Keras models for serving, with the signatures and receivers of an estimator."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import errors, small_types, tf_compat
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.types import Function, Nest, Object, Tensor

_RESOURCES = (tf.Module, tf.lookup.StaticHashTable, tf.lookup.StaticVocabularyTable, tf.Variable)


def exportable(model: Object) -> tf.Module:
    """Creates a module that `tf.saved_model.save` can write, with signatures, instead of a model.

    The module has the model's layers, and the modules, lookup tables and variables that are
    attributes of the model. Keras 3 cannot save a model that takes SparseTensors or RaggedTensors,
    because the signature that Keras writes expects dense tensors.
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
    """Writes a SavedModel of functions that call a Keras model, with tables in a small type.

        export_saved_model(model, folder, serve_examples, table_dtype="int8")

    Args:
        model: a model with `TPUEmbedding` or `ColumnEmbedding` layers, which is not changed.
        signatures: a tf.function with an `input_signature`, or a dict from signature names to such
            functions. They are traced again, with the small tables.
        table_dtype: a type as in `tf2_engine.serving_table`, or a dict from table names to types.

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
    for each in functions:  # The loop extends the list.
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


INPUTS = "inputs"
"""The input's name in signatures for the classify and regress requests of TensorFlow Serving."""

Specs = Mapping[str, tf.TensorSpec]


class OfExamples(NamedTuple):
    """The outputs of a signature whose only input is serialized Examples, called "inputs"."""

    outputs: dict[str, Tensor]


Outputs = dict[str, Tensor] | OfExamples


def request_of(signature: Outputs, specs: Specs) -> Specs | None:
    """Maps a signature's inputs to specs; None if it needs Examples, which `specs` lacks."""
    if not isinstance(signature, OfExamples):
        # Clients send inputs by key. The names of specs do not matter.
        return {key: tf.TensorSpec(each.shape, each.dtype, key) for key, each in specs.items()}
    (only, *others) = specs.values()
    if others or only.dtype != tf.string:
        return None
    return {INPUTS: tf.TensorSpec(only.shape, only.dtype, INPUTS)}


def outputs_of(signature: Outputs) -> dict[str, Tensor]:
    return signature.outputs if isinstance(signature, OfExamples) else signature


class ServingInputReceiver(NamedTuple):
    """The result of a receiver function: features, and the placeholders that servers feed.

    Attributes:
        features: a dict of tensors. A single tensor gets the key "feature".
        receiver_tensors: a dict of placeholders. A single placeholder gets the key "input".
    """

    features: Nest
    receiver_tensors: Tensor | Mapping[str, Tensor]


class TensorServingInputReceiver(ServingInputReceiver):
    """A `ServingInputReceiver` for a model that takes one tensor instead of a dict."""


def graph_receiver(
    serving_input_receiver_fn: Callable[[], ServingInputReceiver],
) -> tuple[Object, ...]:
    """Converts a receiver function to input specs and a function that computes features.

        model.export_saved_model("served", *graph_receiver(serving_input_receiver_fn))

    Args:
        serving_input_receiver_fn: creates placeholders of TensorFlow 1, and computes features from
            them with any ops. It is called once, in a separate graph. Clients send a sparse
            placeholder as three tensors, NAME_indices, NAME_values and NAME_dense_shape. A function
            from `parsing_receiver` is accepted, too.

    Raises:
        WrongType: the function does not return a `ServingInputReceiver`, or one of the receiver
            tensors is neither a dense nor a sparse placeholder.
    """
    receivers: list[ServingInputReceiver] = []

    def receive() -> None:
        receivers.append(serving_input_receiver_fn())

    graph = tf.compat.v1.wrap_function(receive, [])
    (receiver,) = receivers
    if isinstance(receiver, tuple) and len(receiver) == 2 and callable(receiver[1]):
        return receiver
    if not isinstance(receiver, ServingInputReceiver):
        raise errors.WrongType(
            "serving_input_receiver_fn must return a ServingInputReceiver with features and "
            f"receiver_tensors, but it returned {receiver!r}."
        )
    received = receiver.receiver_tensors
    named = _dense(dict(received) if isinstance(received, Mapping) else {"input": received})
    features: Nest = receiver.features
    if isinstance(features, tf.Tensor) and not isinstance(receiver, TensorServingInputReceiver):
        features = {"feature": features}
    from_feeds = graph.prune([*named.values()], features)
    specs = {key: tf.TensorSpec(each.shape, each.dtype, key) for key, each in named.items()}
    return (
        specs,
        lambda request: from_feeds(*(request[key] for key in named)),
        *resources_of(serving_input_receiver_fn),
    )


def _dense(received: Mapping[str, Object]) -> dict[str, Tensor]:
    dense: dict[str, Tensor] = {}
    for name, each in received.items():
        if isinstance(each, tf.SparseTensor):
            parts = ("indices", "values", "dense_shape")
            dense.update({f"{name}_{part}": getattr(each, part) for part in parts})
        elif isinstance(each, tf.Tensor):
            dense[name] = each
        else:
            raise errors.WrongType(
                f"Receiver tensor {name!r} is {each!r}. Make the placeholder dense or sparse, and "
                "convert it to a ragged tensor in serving_input_receiver_fn."
            )
    return dense


def raw_receiver(
    features: Mapping[str, Object], default_batch_size: int | None = None
) -> Callable[[], tuple[dict[str, tf.TensorSpec], Function]]:
    """Creates a receiver for features that need no parsing, for `TableModel.export_saved_model`.

    Args:
        features: `tf.TensorSpec`s or tensors whose first dimension is the batch.
        default_batch_size: None allows any batch size.
    """
    specs = {
        key: tf.TensorSpec([default_batch_size, *each.shape[1:]], each.dtype, key)
        for key, each in features.items()
    }
    return lambda: (specs, lambda request: request)
