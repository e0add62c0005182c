"""Wraps methods of model classes, and captures values that a model_fn computes in training.

To find the first op that differs, `verify` also captures a sketch of every op's output. The sketch
of a flattened output x has two numbers: Σ cos(i + 1) x[i], and √(Σ x[i]²) as the scale of x. Both
change if x is multiplied by a factor. The first changes if any single element changes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, TPUEstimatorSpec
from estimator_bridge.legacy.host_calls import sources, updates_of_step
from estimator_bridge.legacy.requirements import argument_names
from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    MODEL_OPS,
    SUMMED_ROWS,
    Values,
)
from estimator_bridge.run import program_lines
from estimator_bridge.runtime.step.activation_proxy import DUMMY_NAME
from tf2_engine import tf_compat
from tf2_engine.types import Array, Function, Graph, Object, Op, Tensor

CallArguments = dict[str, Object]

_DUMMY = DUMMY_NAME.format("")
ROWS_OF_SLICES = "/IndexedSlices:rows"
_APPLY = "apply_gradients"
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
Part = tuple[int, int]
"""A part of a split variable: the axis of the split, and the index at which the part begins."""
_WHOLE = (0, 0)
Substitute = Callable[[int, str, str, Array, bool], Array]
"""Returns the value that replaces a captured value in training.

The arguments are the step (from 0), the value's group and name, the value, and whether the new
value may have another number of rows.
"""
IsDue = Callable[[], bool]
SKETCH = "sketch"
"""The name under which a recorded step contains the sketches, [ops, 2] float64."""
# Running these ops more often than the model does would change the model's results.
_WRITES = ("Assign", "ResourceApply", "Apply", "Scatter", "ResourceScatter", "Iterator", "Print")
_BRANCHES, _JOINS = ("Switch", "RefSwitch", "Enter", "RefEnter"), ("Merge", "RefMerge", "Exit")
_MAX_OPS = 5000


def intercepted(original: Function, replacement: Function) -> Function:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Object, *args: Object, **kwargs: Object) -> Object:
        arguments = dict(signature.bind(self, *args, **kwargs).arguments)
        arguments.pop(next(iter(signature.parameters)))
        return replacement(original, self, arguments)

    return method


def intercept(model_class: type, methods: Mapping[str, Function]) -> None:
    """Replaces methods of a class; a call then runs `methods[name](original, self, arguments)`."""
    for name, method in methods.items():
        setattr(model_class, name, intercepted(getattr(model_class, name), method))


@contextlib.contextmanager
def intercepting(model_class: type, methods: Mapping[str, Function]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, method in methods.items():
            replacement = intercepted(getattr(model_class, name), method)
            stack.enter_context(replaced(model_class, name, replacement))
        yield


@contextlib.contextmanager
def replaced(owner: Object, name: str, value: Object) -> Iterator[None]:
    is_own, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def with_signature_of(function: Function, wrapper: Function) -> Function:
    wrapper.__signature__ = _remaining_signature(function)  # type: ignore[attr-defined]
    return wrapper


def _remaining_signature(function: Function) -> inspect.Signature:
    signature, names = inspect.signature(function), argument_names(function)
    parameters = signature.parameters.values()
    remaining = [each for each in parameters if each.name in names or each.kind in _ANY_NUMBER]
    return signature.replace(parameters=remaining)


class Capture:
    """Collects the values that training computes, and can replace them by other values."""

    def __init__(self, substitute: Substitute | None = None) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str, Part], list[Array]] = {}
        self._substitute = substitute
        self._steps_flushed = 0

    def tensor(
        self,
        group: str,
        name: str,
        tensor: Tensor,
        *,
        is_open: bool = False,
        part: Part | None = None,
        is_due: IsDue = lambda: True,
    ) -> Tensor:
        """Wraps `tensor` in an identity op that records the value when it is computed.

        The op may also replace the value, but not if the tensor is a `part` of an array. `is_open`
        says whether the new value may have another number of rows. `is_due` is called when the
        value is computed, and says whether to record it.
        """

        def keep(value: Array, core: Array) -> np.bool_:
            if is_due():
                self._keep(group, name_of_core(name, int(core)), value, part or _WHOLE)
            return np.True_

        if self._substitute is not None and group != LOSS and part is None:
            return self._substituted(group, name, tensor, is_open, is_due)
        kept = tf.numpy_function(keep, [tensor, tf_compat.core_now()], tf.bool)
        with tf.control_dependencies([kept]):
            return tf.identity(tensor)

    def _substituted(
        self, group: str, name: str, tensor: Tensor, is_open: bool, is_due: IsDue
    ) -> Tensor:
        substitute = self._substitute
        assert substitute is not None

        def keep(value: Array, core: Array) -> Array:
            if not is_due():
                return value
            of_core = name_of_core(name, int(core))
            number = self._keep(group, of_core, value)
            return substitute(number, group, of_core, value, is_open)

        kept = tf.numpy_function(keep, [tensor, tf_compat.core_now()], tensor.dtype)
        kept.set_shape([None, *tensor.shape[1:]] if is_open else tensor.shape)
        return kept

    def _keep(self, group: str, name: str, value: Array, part: Part = _WHOLE) -> int:
        with self._lock:  # ops run in several threads
            values = self._values.setdefault((group, name, part), [])
            values.append(np.array(value))
            return self._steps_flushed + len(values) - 1

    def flush(self, num_steps: int | None = None) -> list[dict[str, Values]]:
        with self._lock:
            captured, self._values = self._values, {}
            num_captured = max(map(len, captured.values()), default=0)
            num_steps = num_captured if num_steps is None else num_steps
            self._steps_flushed += num_steps
        steps: list[dict[str, Values]] = [{} for _ in range(num_steps)]
        for (group, name, (axis, begin)), values in sorted(captured.items()):
            for step, value in zip(steps, values, strict=False):
                arrays = step.setdefault(group, {})
                part = value + begin if name.endswith(ROWS_OF_SLICES) else value
                whole = np.concatenate([arrays[name], part], axis) if name in arrays else part
                arrays[name] = whole
        return [_with_summed_slices(step) for step in steps]


def capturing_model_fn(
    model_fn: Function, keys: Collection[str], capture: Capture, is_training: Callable[[], bool]
) -> Function:
    signature = _remaining_signature(model_fn)
    cores: weakref.WeakKeyDictionary[Graph, int] = weakref.WeakKeyDictionary()

    def call(*args: Object, **kwargs: Object) -> Object:
        if not is_training():
            return model_fn(*args, **kwargs)
        graph = tf.get_default_graph()
        # In eager mode the model_fn is called in every step.
        core = 0 if tf.executing_eagerly() else cores.get(graph, -1) + 1
        cores[graph] = core
        bound = signature.bind(*args, **kwargs)
        features = bound.arguments["features"]
        if isinstance(features, Mapping):
            captured = {
                key: captured_both_ways(capture, name_of_core(key, core), value)
                for key, value in features.items()
                if key in keys and isinstance(value, tf.Tensor)
            }
            bound.arguments["features"] = {**features, **captured}
        # Every core creates a train_op, but only the first train_op runs.
        updates = _captured_updates(capture) if core == 0 else contextlib.nullcontext()
        # The engines number ops differently, which must not change the seeds of dropout.
        with updates, tf_compat.numbered_seeds(core * tf_compat.SEEDS_PER_CORE):
            spec = model_fn(*bound.args, **bound.kwargs)
            loss = capture.tensor(LOSS, name_of_core(LOSS, core), spec.loss)
            return spec._replace(loss=loss)

    return with_signature_of(model_fn, call)


def refusing_specs_of_bridge(model_fn: Function) -> Function:
    def call(*args: Object, **kwargs: Object) -> Object:
        spec = model_fn(*args, **kwargs)
        if isinstance(spec, (EstimatorSpec, TPUEstimatorSpec)):
            raise errors.InvalidInput(
                f"model_fn returned the bridge's {type(spec).__name__}, but stock's TPUEstimator "
                "does not accept it. A model_fn that both sides run must return stock's class, "
                f"tf.compat.v1.estimator{'.tpu' * isinstance(spec, TPUEstimatorSpec)}."
                f"{type(spec).__name__}, which the bridge accepts, too."
            )
        return spec

    return with_signature_of(model_fn, call)


def send_before_counting(original: Function, embedding: Object, arguments: CallArguments) -> Op:
    """Makes stock compute rates and gradients before the model increments the global step.

    The bridge does so, too. Stock's graph leaves open whether a rate reads the step before or
    after the increment.
    """
    sent: Op = original(embedding, **arguments)
    if arguments.get("step") is None:
        return sent
    graph, handle = sent.graph, arguments["step"].op.outputs[0]
    step = (graph.capture(handle) if hasattr(graph, "capture") else handle).op
    of_step = [tensor.op for tensor in sent.inputs if step in sources(tensor.op)]
    for update in updates_of_step(graph, step):
        for op in of_step:
            if update not in sources(op, control=True):
                tf_compat.run_after(update, op)
    return sent


def name_of_core(key: str, core: int) -> str:
    return key if core == 0 else f"{key} (core {core})"


def captured_both_ways(capture: Capture, name: str, activation: Tensor) -> Tensor:
    @tf.custom_gradient
    def identity(value: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        def gradient(upstream: Tensor) -> Tensor:
            return capture.tensor(GRADIENTS, name, upstream)

        return capture.tensor(ACTIVATIONS, name, value), gradient

    return identity(activation)


@contextlib.contextmanager
def _captured_updates(capture: Capture) -> Iterator[None]:
    """Captures the gradients that optimizers apply.

    One `apply_gradients` may call another: CrossShardOptimizer calls the wrapped optimizer's, and a
    subclass may call its base class's. Only the gradients of the innermost call are recorded.
    """
    handed_on: list[set[str]] = []  # for each running call, the variables that inner calls update

    def captured(pairs: Iterable[tuple[Object, Object]], by_inner: set[str]) -> Iterator[Object]:
        for gradient, variable in pairs:
            name, part = _place(variable)
            for names in handed_on:
                names.add(name)
            is_due = functools.partial(_is_missing, name, by_inner)
            yield captured_update(capture, gradient, name, part, is_due), variable

    def capturing(original: Function) -> Function:
        @functools.wraps(original)
        def apply_gradients(
            optimizer: Object, grads_and_vars: Object, *args: Object, **kwargs: Object
        ) -> Object:
            by_inner: set[str] = set()
            pairs = list(captured(grads_and_vars, by_inner))
            handed_on.append(by_inner)
            try:
                return original(optimizer, pairs, *args, **kwargs)
            finally:
                handed_on.pop()

        return apply_gradients

    def get_gradients(original: Function, optimizer: Object, arguments: CallArguments) -> Object:
        gradients = original(optimizer, **arguments)
        variables = tf.nest.flatten(arguments["params"])
        pairs = zip(gradients, variables, strict=True)
        return [captured_update(capture, each, *_place(of)) for each, of in pairs]

    # TensorFlow 2's canned estimators train with get_gradients.
    keras_optimizer = tf_compat.keras2().optimizers.legacy.Optimizer
    with contextlib.ExitStack() as stack:
        stack.enter_context(intercepting(keras_optimizer, {"get_gradients": get_gradients}))
        for each in _classes_with_own(_APPLY, tf.train.Optimizer):
            stack.enter_context(replaced(each, _APPLY, capturing(vars(each)[_APPLY])))
        yield


def _is_missing(name: str, names: Collection[str]) -> bool:
    return name not in names


def _classes_with_own(method: str, base: Object) -> set[Object]:
    classes = {base} if method in vars(base) else set()
    for each in base.__subclasses__():
        classes |= _classes_with_own(method, each)
    return classes


def _place(variable: Object) -> tuple[str, Part | None]:
    if tf.executing_eagerly_outside_functions():
        return str(variable.name.rpartition(":")[0]), None
    return tf_compat.checkpoint_key(variable), tf_compat.part_of(variable)


def captured_update(
    capture: Capture,
    gradient: Object,
    name: str,
    part: Part | None = None,
    is_due: IsDue = lambda: True,
) -> Object:
    if gradient is None or _DUMMY in name:
        return gradient
    captured = functools.partial(capture.tensor, GRADIENTS, part=part, is_due=is_due)
    if isinstance(gradient, tf.IndexedSlices):
        axis, begin = part or _WHOLE
        rows = gradient.indices
        if not axis or not begin:  # if a variable is split by columns, all parts have the same rows
            rows = captured(name + ROWS_OF_SLICES, rows, is_open=True)
        values = captured(name, gradient.values, is_open=True)
        return tf.IndexedSlices(values, rows, gradient.dense_shape)
    return captured(name, gradient)


def _with_summed_slices(step: dict[str, Values]) -> dict[str, Values]:
    gradients = dict(step.get(GRADIENTS, {}))
    for key in [key for key in gradients if key.endswith(ROWS_OF_SLICES)]:
        name = key.removesuffix(ROWS_OF_SLICES)
        rows, positions = np.unique(gradients.pop(key), return_inverse=True)
        slices = gradients[name]
        gradients[name] = np.zeros((len(rows), *slices.shape[1:]), slices.dtype)
        np.add.at(gradients[name], positions, slices)
        # The dtype of the rows depends on the op that made the slices, and does not matter.
        gradients[name + SUMMED_ROWS] = rows.astype(np.int64)
    return {**step, **({GRADIENTS: gradients} if gradients else {})}


class ModelOp(NamedTuple):
    """An op of a model: its name, type, and the line of the program that created it."""

    name: str
    kind: str
    source: str


def sketching_model_fn(
    model_fn: Function,
    capture: Capture,
    is_training: Callable[[], bool],
    describe: Callable[[Sequence[ModelOp]], None],
) -> Function:
    @functools.wraps(model_fn)
    def call(*args: Object, **kwargs: Object) -> Object:
        graph = tf.get_default_graph()
        before = len(graph.get_operations())
        spec = model_fn(*args, **kwargs)
        if not is_training() or spec.loss is None:
            return spec
        tensors = _outputs(graph, before, spec.loss)
        describe([_described(tensor) for tensor in tensors])
        sketch = tf.numpy_function(_sketch, tensors, tf.float64)
        with tf.control_dependencies([capture.tensor(MODEL_OPS, SKETCH, sketch)]):
            return spec._replace(loss=tf.identity(spec.loss))

    return with_signature_of(model_fn, call)


def _outputs(graph: Graph, before: int, loss: Object) -> list[Object]:
    """Lists the float outputs on which the loss, or an update such as a moving average, depends.

    Left out are ops inside branches, ops that depend on a write to a variable, and reference
    variables.
    """
    tensors: list[Object] = []
    left_out: set[str] = set()
    used = _used_by([loss.op, *graph.get_collection(tf.GraphKeys.UPDATE_OPS)])
    for op in graph.get_operations()[before:]:
        if _is_left_out(op, left_out):
            left_out.add(op.name)
        elif op.name in used and not _is_of_reference(op):
            tensors.extend(each for each in op.outputs if each.dtype.is_floating)
        if op is loss.op:
            break
    return tensors[:_MAX_OPS]


def _used_by(ops: Iterable[Object]) -> set[str]:
    names: set[str] = set()
    waiting: list[Op] = [getattr(each, "op", each) for each in ops]
    while waiting:
        op: Op = waiting.pop()
        if op.name not in names:
            names.add(op.name)
            waiting.extend(tensor.op for tensor in op.inputs)
    return names


def _is_left_out(op: Op, left_out: set[str]) -> bool:
    if op.type.startswith(_WRITES) or op.type in _BRANCHES:
        return True
    if op.type in _JOINS:
        return False
    sources = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return any(source.name in left_out for source in sources)


def _is_of_reference(op: Op) -> bool:
    """Whether an op's output is a variable's own memory, which training may change."""
    is_read = op.type == "Identity"
    tensors = [*op.outputs, *(op.inputs if is_read else ())]
    return any(tensor.dtype != tensor.dtype.base_dtype for tensor in tensors)


def _described(tensor: Object) -> ModelOp:
    number = tensor.name.rpartition(":")[2]
    name = tensor.op.name if number == "0" else tensor.name
    return ModelOp(name, tensor.op.type, _source(tensor.op))


def _source(op: Op) -> str:
    for frame in reversed(list(op.traceback or ())):
        filename, number = frame[0], frame[1]
        if program_lines.is_of_program(filename):
            return f"{os.path.basename(filename)}, line {number}"
    return ""


def _sketch(*values: Array) -> Array:
    sketches = np.zeros([len(values), 2])
    with np.errstate(over="ignore", invalid="ignore"):
        for sketch, value in zip(sketches, values, strict=True):
            flat = np.ravel(value).astype(np.float64)
            sketch[:] = np.cos(np.arange(1, flat.size + 1)) @ flat, np.sqrt(flat @ flat)
    return sketches
