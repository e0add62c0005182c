"""Wraps methods of model classes, and captures values that a model_fn computes in training."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, TPUEstimatorSpec
from estimator_bridge.legacy.requirements import argument_names
from estimator_bridge.recording.files import ACTIVATIONS, GRADIENTS, LOSS, SUMMED_ROWS, Values
from estimator_bridge.runtime.step.activation_proxy import DUMMY_NAME
from tf2_engine import tf_compat
from tf2_engine.types import Array, Function, Graph, Object, Tensor

Arguments = dict[str, Object]
"""The arguments of a call by name."""

_DUMMY = DUMMY_NAME.format("")
ROWS_OF_SLICES = "/IndexedSlices:rows"
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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


Part = tuple[int, int]
"""A part of a split variable: the axis along which it is split, and the index at which the part
begins.
"""

_WHOLE = (0, 0)

Substitute = Callable[[int, str, str, Array, bool], Array]
"""Returns the value that replaces a captured value in training.

The arguments are the step (from 0), group, name and value, and whether the number of rows may
differ.
"""


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
    ) -> Tensor:
        """Wraps `tensor` in an identity op that records the value when it is computed.

        `is_open` says whether a value that replaces this one may have more or fewer rows. A tensor
        that is a `part` of an array is never replaced.
        """

        def keep(value: Array, core: Array) -> np.bool_:
            self._keep(group, name_of_core(name, int(core)), value, part or _WHOLE)
            return np.True_

        if self._substitute is not None and group != LOSS and part is None:
            return self._substituted(group, name, tensor, is_open)
        kept = tf.numpy_function(keep, [tensor, tf_compat.core_now()], tf.bool)
        with tf.control_dependencies([kept]):
            return tf.identity(tensor)

    def _substituted(self, group: str, name: str, tensor: Tensor, is_open: bool) -> Tensor:
        substitute = self._substitute
        assert substitute is not None

        def keep(value: Array, core: Array) -> Array:
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
                f"model_fn returned the bridge's {type(spec).__name__}, which stock's TPUEstimator "
                "cannot take. Write a model_fn that both sides run with stock's names: "
                f"tf.compat.v1.estimator{'.tpu' * isinstance(spec, TPUEstimatorSpec)}."
                f"{type(spec).__name__}; the bridge takes those, too."
            )
        return spec

    return with_signature_of(model_fn, call)


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
    def apply_gradients(original: Function, optimizer: Object, arguments: Arguments) -> Object:
        pairs = arguments.pop("grads_and_vars")
        captured = [(captured_update(capture, each, *_place(of)), of) for each, of in pairs]
        return original(optimizer, captured, **arguments)

    def get_gradients(original: Function, optimizer: Object, arguments: Arguments) -> Object:
        gradients = original(optimizer, **arguments)
        variables = tf.nest.flatten(arguments["params"])
        pairs = zip(gradients, variables, strict=True)
        return [captured_update(capture, each, *_place(of)) for each, of in pairs]

    # TensorFlow 2's canned estimators train with get_gradients.
    keras_optimizer = tf_compat.keras2().optimizers.legacy.Optimizer
    with (
        intercepting(tf.train.Optimizer, {"apply_gradients": apply_gradients}),
        intercepting(keras_optimizer, {"get_gradients": get_gradients}),
    ):
        yield


def _place(variable: Object) -> tuple[str, Part | None]:
    if tf.executing_eagerly_outside_functions():
        return str(variable.name.rpartition(":")[0]), None
    return tf_compat.checkpoint_key(variable), tf_compat.part_of(variable)


def captured_update(
    capture: Capture, gradient: Object, name: str, part: Part | None = None
) -> Object:
    if gradient is None or _DUMMY in name:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        axis, begin = part or _WHOLE
        rows = gradient.indices
        if not axis or not begin:  # if split by columns, all parts have the same rows
            of_rows = name + ROWS_OF_SLICES
            rows = capture.tensor(GRADIENTS, of_rows, rows, is_open=True, part=part)
        values = capture.tensor(GRADIENTS, name, gradient.values, is_open=True, part=part)
        return tf.IndexedSlices(values, rows, gradient.dense_shape)
    return capture.tensor(GRADIENTS, name, gradient, part=part)


def _with_summed_slices(step: dict[str, Values]) -> dict[str, Values]:
    gradients = dict(step.get(GRADIENTS, {}))
    for key in [key for key in gradients if key.endswith(ROWS_OF_SLICES)]:
        name = key.removesuffix(ROWS_OF_SLICES)
        rows, positions = np.unique(gradients.pop(key), return_inverse=True)
        slices = gradients[name]
        gradients[name] = np.zeros((len(rows), *slices.shape[1:]), slices.dtype)
        np.add.at(gradients[name], positions, slices)
        # The dtype of the rows depends on the op that made the slices; it does not count as a
        # difference.
        gradients[name + SUMMED_ROWS] = rows.astype(np.int64)
    return {**step, **({GRADIENTS: gradients} if gradients else {})}
