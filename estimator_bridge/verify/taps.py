"""Taps in a program's graph: copies of its batches, activations and gradients, and its state.

A tap is an op that hands a value over and passes it on.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pathlib
import re
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.checks import argument_names
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, TPUEstimatorSpec
from estimator_bridge.runtime.step.activation_proxy import DUMMY_NAME
from estimator_bridge.verify.recording import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    VARIABLES,
    Recording,
    Values,
    Writer,
    read_arrays,
)
from tf2_engine import tf_compat

_PART = re.compile(r"/part_\d+$")
_DUMMY = DUMMY_NAME.format("")
_ROWS_OF_SLICES = "/IndexedSlices:rows"
_BATCH = ("features", "labels")
_SEEDS_OF_CORE = 1 << 16
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Tapped:
    """What the taps of a training handed over since the last flush."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], list[Any]] = {}

    def keep(self, group: str, name: str, value: Any) -> None:
        """Keeps a copy of a value; taps run on threads of their own."""
        with self._lock:
            self._kept.setdefault((group, name), []).append(np.array(value))

    def flush(self) -> list[dict[str, Values]]:
        """Returns the values of each step since the last call, in order."""
        with self._lock:
            kept, self._kept = self._kept, {}
        steps: list[dict[str, Values]] = [
            {} for _ in range(max(map(len, kept.values()), default=0))
        ]
        for (group, name), values in kept.items():
            for step, value in zip(steps, values, strict=False):
                step.setdefault(group, {})[name] = value
        return steps


def tap(tapped: Tapped, group: str, name: str, value: tf.Tensor) -> tf.Tensor:
    """Returns `value`; whoever computes it hands it over."""

    def keep(array: Any) -> Any:
        tapped.keep(group, name, array)
        return np.True_

    done = tf.numpy_function(keep, [value], tf.bool)
    with tf.control_dependencies([done]):
        return tf.identity(value)


def tapped_model_fn(
    model_fn: Callable[..., Any],
    keys: Collection[str],
    tapped: Tapped,
    is_training: Callable[[], bool],
) -> Callable[..., Any]:
    """Returns a model_fn that hands over activations, gradients and the loss of training.

    Args:
        keys: the features that are activations.
        is_training: whether the model_fn is called to train; else nothing is tapped.
    """
    signature = _signature(model_fn)
    cores: weakref.WeakKeyDictionary[tf.Graph, int] = weakref.WeakKeyDictionary()

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_training():
            return model_fn(*args, **kwargs)
        graph = tf.get_default_graph()
        # A model_fn that is called eagerly is called for each step.
        core = 0 if tf.executing_eagerly() else cores.get(graph, -1) + 1
        cores[graph] = core
        given = signature.bind(*args, **kwargs)
        features = given.arguments["features"]
        if isinstance(features, Mapping):
            own = {
                key: _both_ways(tapped, _of_core(key, core), value)
                for key, value in features.items()
                if key in keys and isinstance(value, tf.Tensor)
            }
            given.arguments["features"] = {**features, **own}
        # Every core makes a train_op; the first one's is run.
        taps = _tapped_updates(tapped) if core == 0 else contextlib.nullcontext()
        # What else is in the graph differs between engines, and must not tell dropout apart.
        with taps, tf_compat.numbered_seeds(core * _SEEDS_OF_CORE):
            spec = model_fn(*given.args, **given.kwargs)
            return spec._replace(loss=tap(tapped, LOSS, _of_core(LOSS, core), spec.loss))

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def with_names_of_stock(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a model_fn that says what is wrong if stock could not take what it returns."""

    def call(*args: Any, **kwargs: Any) -> Any:
        spec = model_fn(*args, **kwargs)
        if isinstance(spec, (EstimatorSpec, TPUEstimatorSpec)):
            raise errors.InvalidInput(
                f"model_fn returned the bridge's {type(spec).__name__}, which stock's TPUEstimator "
                "cannot take. Write a model_fn that both sides run with stock's names: "
                f"tf.compat.v1.estimator{'.tpu' * isinstance(spec, TPUEstimatorSpec)}."
                f"{type(spec).__name__}; the bridge takes those, too."
            )
        return spec

    call.__signature__ = _signature(model_fn)  # type: ignore[attr-defined]
    return call


def tapped_input_fn(
    input_fn: Callable[..., Any], writer: Writer, replayed: Recording | None, step: int
) -> Callable[..., Any]:
    """Returns an input_fn that writes each batch, or gives those of a recording.

    Args:
        replayed: of the input_fn's own batches only the structure is used then. If that is another
            one, or no dataset, its own are given, and written.
        step: how many steps were made before.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        given, of = input_fn(*args, **kwargs), writer.input(step)
        if not isinstance(given, (tf.data.Dataset, tf.compat.v2.data.Dataset)):
            return _written(writer, of, given)
        files = [] if replayed is None else replayed.batches(of)
        if files and _fits(read_arrays(files[0]), given.element_spec):
            return _replay(files, given.element_spec)
        return given.map(lambda *batch: _written(writer, of, batch))

    call.__signature__ = _signature(input_fn)  # type: ignore[attr-defined]
    return call


def batch_names(batch: Any) -> list[str]:
    """Returns a name for each tensor of a batch, in the order in which `tf.nest` flattens it."""
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        return [name for part, of in zip(batch, _BATCH, strict=True) for name in _names(part, of)]
    return _names(batch, _BATCH[0])


def _names(structure: Any, above: str) -> list[str]:
    return [above + name for name in _names_below(structure)]


def _names_below(structure: Any) -> list[str]:
    if isinstance(structure, (tf.SparseTensor, tf.SparseTensorSpec)):
        return [".indices", ".values", ".shape"]
    if isinstance(structure, Mapping):
        return [name for key in sorted(structure) for name in _names(structure[key], f"/{key}")]
    if isinstance(structure, (list, tuple)):
        return [name for i, part in enumerate(structure) for name in _names(part, f"/{i}")]
    parts = tf.nest.flatten(structure, expand_composites=True)
    return [""] if len(parts) == 1 else [f".{i}" for i in range(len(parts))]


class StateHook(tf.train.SessionRunHook):
    """Writes every variable at the start and after each call, and begins from a given start.

    Args:
        begin_from: a checkpoint; variables that it lacks keep their initial values.
        save_start: where to write the start as a checkpoint; None does not.
        first: whether this is the first training of the recording, whose start is written.
        at_start: called with the graph.
        progress: called with the global step.
    """

    def __init__(
        self,
        writer: Writer,
        tapped: Tapped,
        *,
        begin_from: str | None,
        save_start: str | None,
        first: bool,
        at_start: Callable[[tf.Graph], Any],
        progress: Callable[[int], Any],
    ) -> None:
        self._writer = writer
        self._tapped = tapped
        self._begin_from = begin_from
        self._save_start = save_start
        self._first = first
        self._at_start = at_start
        self._progress = progress
        self._number: int | None = None

    def begin(self) -> None:
        """Finds the variables, and gives those that the start has its values."""
        self._variables = grouped_variables()
        self._step = tf.train.get_global_step()
        if self._begin_from is not None:
            reader = tf.train.load_checkpoint(self._begin_from)
            known = reader.get_variable_to_shape_map()
            for name, parts in self._variables.items():
                if known.get(name) == _whole_shape(parts):
                    found = parts if _PART.search(parts[0].op.name) else parts[0]
                    tf.train.init_from_checkpoint(self._begin_from, {name: found})
        self._saver = tf.train.Saver(sharded=False) if self._save_start else None

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Writes the start."""
        if self._number is not None:
            return
        if self._saver is not None:
            self._saver.save(session, self._save_start, write_meta_graph=False, write_state=False)
        self._number = int(session.run(self._step))
        self._tapped.flush()
        if self._first:
            self._writer.step(self._number, {VARIABLES: self._read(session)})
            self._at_start(session.graph)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes the steps that were made."""
        session = run_context.session
        state, number = self._read(session), int(session.run(self._step))
        assert self._number is not None
        steps = self._tapped.flush()
        made = number - self._number
        # A call that made no step, or whose taps tell less than its steps, ends with the state.
        steps = [*steps, *({} for _ in range(made - len(steps)))][:made]
        for offset, values in enumerate(steps, 1):
            last = {VARIABLES: state} if offset == made else {}
            self._writer.step(self._number + offset, {**summed(values), **last})
        self._number = number
        self._progress(number)

    def _read(self, session: Any) -> Values:
        found = session.run(self._variables)
        return {
            name: parts[0] if len(parts) == 1 else np.concatenate(parts)
            for name, parts in found.items()
        }


def grouped_variables() -> dict[str, list[tf.Variable]]:
    """Returns the variables of the default graph by their names in a checkpoint, part by part."""
    grouped: dict[str, list[tf.Variable]] = {}
    for variable in tf.global_variables():
        grouped.setdefault(_PART.sub("", variable.op.name), []).append(variable)
    return grouped


def _whole_shape(parts: list[tf.Variable]) -> list[int]:
    first, *others = (part.shape.as_list() for part in parts)
    return [first[0] + sum(other[0] for other in others), *first[1:]] if others else first


def _of_core(key: str, core: int) -> str:
    return key if core == 0 else f"{key} (core {core})"


def _both_ways(tapped: Tapped, name: str, activation: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def through(value: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tap(tapped, GRADIENTS, name, upstream)

        return tap(tapped, ACTIVATIONS, name, value), gradient

    return through(activation)


@contextlib.contextmanager
def _tapped_updates(tapped: Tapped) -> Iterator[None]:
    """While it is open, optimizers hand over the gradients that they apply."""
    kind = tf.train.Optimizer
    stock = kind.apply_gradients

    @functools.wraps(stock)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = [(_tapped_gradient(tapped, grad, var), var) for grad, var in grads_and_vars]
        return stock(self, pairs, *args, **kwargs)

    kind.apply_gradients = apply_gradients
    try:
        yield
    finally:
        kind.apply_gradients = stock


def _tapped_gradient(tapped: Tapped, gradient: Any, variable: Any) -> Any:
    name = _PART.sub("", variable.name.rpartition(":")[0])
    if gradient is None or _DUMMY in name:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        rows = tap(tapped, GRADIENTS, name + _ROWS_OF_SLICES, gradient.indices)
        values = tap(tapped, GRADIENTS, name, gradient.values)
        return tf.IndexedSlices(values, rows, gradient.dense_shape)
    return tap(tapped, GRADIENTS, name, gradient)


def summed(values: dict[str, Values]) -> dict[str, Values]:
    """Sums the gradients that were handed over slice by slice, row by row."""
    gradients = dict(values.get(GRADIENTS, {}))
    for name in [name for name in gradients if name.endswith(_ROWS_OF_SLICES)]:
        rows = gradients.pop(name)
        of = name.removesuffix(_ROWS_OF_SLICES)
        distinct, where = np.unique(rows, return_inverse=True)
        summed = np.zeros((len(distinct), *gradients[of].shape[1:]), gradients[of].dtype)
        np.add.at(summed, where, gradients[of])
        gradients[of] = summed
        gradients[f"{of} (rows)"] = distinct
    return {**values, **({GRADIENTS: gradients} if gradients else {})}


def _written(writer: Writer, of: int, batch: Any) -> Any:
    """Returns a batch; whoever computes it writes it."""
    batch = batch[0] if isinstance(batch, tuple) and len(batch) == 1 else batch
    names = batch_names(batch)
    flat = tf.nest.flatten(batch, expand_composites=True)

    def write(*arrays: Any) -> Any:
        writer.batch(dict(zip(names, arrays, strict=True)), of)
        return np.True_

    done = tf.numpy_function(write, flat, tf.bool)
    with tf.control_dependencies([done]):
        flat = [tf.identity(part) for part in flat]
    return tf.nest.pack_sequence_as(batch, flat, expand_composites=True)


def _fits(batch: Values, spec: Any) -> bool:
    """Returns whether a batch has the structure and the shapes of a dataset's elements."""
    names = batch_names(spec)
    parts = tf.nest.flatten(spec, expand_composites=True)
    return all(
        name in batch and part.shape.is_compatible_with(batch[name].shape)
        for name, part in zip(names, parts, strict=True)
    )


def _replay(files: Sequence[pathlib.Path], spec: Any) -> Any:
    """Returns a dataset of the batches of a recording.

    Args:
        spec: of the elements.
    """
    names = batch_names(spec)
    flat = tf.nest.flatten(spec, expand_composites=True)
    kinds = [part.dtype for part in flat]

    def read(number: Any) -> list[Any]:
        values = read_arrays(files[int(number)])
        return [values[name] for name in names]

    def batch(number: tf.Tensor) -> Any:
        arrays = tf.numpy_function(read, [number], kinds)
        for array, part in zip(arrays, flat, strict=True):
            array.set_shape(part.shape)
        return tf.nest.pack_sequence_as(spec, arrays, expand_composites=True)

    return tf.data.Dataset.range(len(files)).map(batch)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of what a function still takes; estimators look at it."""
    signature = inspect.signature(function)
    open_ = argument_names(function)
    kept = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.name in open_ or parameter.kind in _ANY_NUMBER
    ]
    return signature.replace(parameters=kept)
