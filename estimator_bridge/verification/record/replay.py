"""Records the batches of a program's input_fn, or replays the batches of another recording."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.recording.files import Values, read_arrays
from estimator_bridge.verification.record.capture import with_signature_of
from tf2_engine.training.iterators import dataset_of
from tf2_engine.types import Array, Dataset, Function, Nest, Object, Tensor

_PARTS_OF_BATCH = ("features", "labels")
_OF_ONE_KIND = ("iu", "f", "b", "O", "V", "c")


class InputRecord(NamedTuple):
    """Functions that record the batches of an input_fn, or find the batches to replay.

    Attributes:
        begin: called when an input_fn is called; returns the zero-based index of its input.
        files: returns the files with the batches that replace an input. If there are none, the
            input is recorded.
        unlike: called with the reasons why recorded batches do not fit an input.
    """

    begin: Callable[[], int]
    files: Callable[[int], Sequence[pathlib.Path]]
    write: Callable[[int, Mapping[str, Object]], None]
    unlike: Callable[[Sequence[str]], None]


def recorded_input_fn(input_fn: Function, record: InputRecord) -> Function:
    def call(*args: Object, **kwargs: Object) -> Object:
        # If the input_fn returns tensors, trainers ask an iterator for each batch.
        inputs = dataset_of(lambda: input_fn(*args, **kwargs))
        number = record.begin()
        if isinstance(inputs, tuple) and len(inputs) == 2 and inputs[1] is None:
            return fed(inputs[0], number), None
        return fed(inputs, number)

    def fed(inputs: Object, number: int) -> Object:
        is_dataset = isinstance(inputs, (tf.data.Dataset, tf.compat.v2.data.Dataset))
        spec = (
            inputs.element_spec
            if is_dataset
            else tf.nest.map_structure(tf.compat.v2.type_spec_from_value, inputs)
        )
        files = record.files(number)
        if files:
            reasons = _misfits(read_arrays(files[0]), spec)
            if not reasons or _converts(files, spec):
                replayed = _replay(files, spec)
                if reasons:
                    record.unlike(reasons)
                return replayed if is_dataset else _next_of(replayed)
            record.unlike(reasons)
        write = functools.partial(record.write, number)
        if not is_dataset:
            return _written(write, inputs)
        return inputs.map(lambda *batch: _written(write, batch))

    return with_signature_of(input_fn, call)


def names_of_batch(batch: Nest) -> list[str]:
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        parts = zip(_PARTS_OF_BATCH, batch, strict=True)
        return [name for prefix, part in parts for name in names_of(prefix, part)]
    return names_of(_PARTS_OF_BATCH[0], batch)


def names_of(prefix: str, structure: Nest) -> list[str]:
    if isinstance(structure, (tf.SparseTensor, tf.SparseTensorSpec)):
        return [f"{prefix}.{part}" for part in ("indices", "values", "shape")]
    if isinstance(structure, (list, tuple)):
        structure = dict(enumerate(structure))
    if isinstance(structure, Mapping):
        keys = sorted(structure)
        return [name for key in keys for name in names_of(f"{prefix}/{key}", structure[key])]
    parts = tf.nest.flatten(structure, expand_composites=True)
    return [prefix] if len(parts) == 1 else [f"{prefix}.{i}" for i in range(len(parts))]


def _next_of(dataset: Dataset) -> Nest:
    iterator = tf.data.make_initializable_iterator(dataset)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def _written(write: Function, batch: Nest) -> Nest:
    batch = batch[0] if isinstance(batch, tuple) and len(batch) == 1 else batch
    names = names_of_batch(batch)
    tensors = tf.nest.flatten(batch, expand_composites=True)

    def write_arrays(*arrays: Array) -> np.bool_:
        write(dict(zip(names, arrays, strict=True)))
        return np.True_

    written = tf.numpy_function(write_arrays, tensors, tf.bool)
    with tf.control_dependencies([written]):
        tensors = [tf.identity(tensor) for tensor in tensors]
    return tf.nest.pack_sequence_as(batch, tensors, expand_composites=True)


def _misfits(batch: Values, spec: Nest) -> list[str]:
    specs = dict(_specs(spec))
    reasons = [f"{name} is on side A alone" for name in sorted(batch.keys() - specs.keys())]
    for name, each in specs.items():
        if name not in batch:
            reasons.append(f"{name} is on side B alone")
            continue
        dtype, shape = tf.as_dtype(batch[name].dtype), batch[name].shape
        if dtype != each.dtype or not each.shape.is_compatible_with(shape):
            reasons.append(
                f"{name} is {dtype.name} {list(shape)} on A, "
                f"{each.dtype.name} {_shown_shape(each.shape)} on B"
            )
    return reasons


def _shown_shape(shape: Object) -> str:
    sizes = "?" if shape.rank is None else ", ".join(str(n or "?") for n in shape.as_list())
    return f"[{sizes}]"


def _specs(spec: Nest) -> list[tuple[str, Object]]:
    flat = tf.nest.flatten(spec, expand_composites=True)
    return list(zip(names_of_batch(spec), flat, strict=True))


def _converts(files: Sequence[pathlib.Path], spec: Nest) -> bool:
    specs = dict(_specs(spec))
    for file in files:
        batch = read_arrays(file)
        if batch.keys() != specs.keys():
            return False
        for name, array in batch.items():
            dtype = np.dtype(specs[name].dtype.as_numpy_dtype)
            if not specs[name].shape.is_compatible_with(array.shape) or not any(
                dtype.kind in kinds and array.dtype.kind in kinds for kinds in _OF_ONE_KIND
            ):
                return False
            back = array.astype(dtype).astype(array.dtype)
            if not np.array_equal(back, array, equal_nan=array.dtype.kind == "f"):
                return False
    return True


def _replay(files: Sequence[pathlib.Path], spec: Nest) -> Dataset:
    specs = _specs(spec)

    def read(number: Array) -> list[Array]:
        values = read_arrays(files[int(number)])
        return [values[name].astype(each.dtype.as_numpy_dtype, copy=False) for name, each in specs]

    def batch(number: Tensor) -> Nest:
        tensors = tf.numpy_function(read, [number], [each.dtype for _, each in specs])
        for tensor, (_, each) in zip(tensors, specs, strict=True):
            tensor.set_shape(each.shape)
        return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)

    return tf.data.Dataset.range(len(files)).map(batch)
