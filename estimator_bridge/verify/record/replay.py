"""Records the batches of a program's input_fn, or replays those of another recording."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.verify.record.capture import Function, with_signature_of
from estimator_bridge.verify.record.recording import Recording, RecordingWriter, Values, read_arrays
from tf2_engine.types import Array, Dataset, Nest, Object, Tensor

_PARTS_OF_BATCH = ("features", "labels")


def recording_input_fn(
    input_fn: Function, writer: RecordingWriter, replayed: Recording | None, step: int
) -> Function:
    """Returns an input_fn that writes each batch, or returns the batches of a recording.

    Args:
        replayed: of the input_fn's own batches only the structure is used then. If that is another
            one, or no dataset, its own are returned, and written.
        step: how many steps were made before.
    """

    def call(*args: Object, **kwargs: Object) -> Object:
        inputs, number = input_fn(*args, **kwargs), writer.input(step)
        if not isinstance(inputs, (tf.data.Dataset, tf.compat.v2.data.Dataset)):
            return _written(writer, number, inputs)
        files = [] if replayed is None else replayed.batches(number)
        if files and _fits(read_arrays(files[0]), inputs.element_spec):
            return _replay(files, inputs.element_spec)
        return inputs.map(lambda *batch: _written(writer, number, batch))

    return with_signature_of(input_fn, call)


def _names_of_batch(batch: Nest) -> list[str]:
    """Returns a name for each tensor of a batch, in the order in which `tf.nest` flattens it."""
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        parts = zip(_PARTS_OF_BATCH, batch, strict=True)
        return [name for prefix, part in parts for name in _names(prefix, part)]
    return _names(_PARTS_OF_BATCH[0], batch)


def _names(prefix: str, structure: Nest) -> list[str]:
    if isinstance(structure, (tf.SparseTensor, tf.SparseTensorSpec)):
        return [f"{prefix}.{part}" for part in ("indices", "values", "shape")]
    if isinstance(structure, (list, tuple)):
        structure = dict(enumerate(structure))
    if isinstance(structure, Mapping):
        keys = sorted(structure)
        return [name for key in keys for name in _names(f"{prefix}/{key}", structure[key])]
    parts = tf.nest.flatten(structure, expand_composites=True)
    return [prefix] if len(parts) == 1 else [f"{prefix}.{i}" for i in range(len(parts))]


def _written(writer: RecordingWriter, number: int, batch: Nest) -> Nest:
    """Returns an identity of a batch that writes the values when it is computed."""
    batch = batch[0] if isinstance(batch, tuple) and len(batch) == 1 else batch
    names = _names_of_batch(batch)
    tensors = tf.nest.flatten(batch, expand_composites=True)

    def write(*arrays: Array) -> np.bool_:
        writer.batch(dict(zip(names, arrays, strict=True)), number)
        return np.True_

    written = tf.numpy_function(write, tensors, tf.bool)
    with tf.control_dependencies([written]):
        tensors = [tf.identity(tensor) for tensor in tensors]
    return tf.nest.pack_sequence_as(batch, tensors, expand_composites=True)


def _fits(batch: Values, spec: Nest) -> bool:
    """Returns whether a batch has the structure and the shapes of a dataset's elements."""
    specs = zip(_names_of_batch(spec), tf.nest.flatten(spec, expand_composites=True), strict=True)
    return all(
        name in batch and each.shape.is_compatible_with(batch[name].shape) for name, each in specs
    )


def _replay(files: Sequence[pathlib.Path], spec: Nest) -> Dataset:
    """Returns a dataset of the batches in files, with elements of `spec`."""
    names = _names_of_batch(spec)
    specs = tf.nest.flatten(spec, expand_composites=True)

    def read(number: Array) -> list[Array]:
        values = read_arrays(files[int(number)])
        return [values[name] for name in names]

    def batch(number: Tensor) -> Nest:
        tensors = tf.numpy_function(read, [number], [each.dtype for each in specs])
        for tensor, each in zip(tensors, specs, strict=True):
            tensor.set_shape(each.shape)
        return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)

    return tf.data.Dataset.range(len(files)).map(batch)
