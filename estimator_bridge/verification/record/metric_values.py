"""Captures the inputs of an evaluation's metrics, and computes the metrics again."""

from __future__ import annotations

import abc
import functools
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.host_calls import call_host_fn
from estimator_bridge.recording.array_files import Values
from estimator_bridge.recording.files import LOSS, METRIC_VARIABLE
from estimator_bridge.verification.record.capture import (
    Capture,
    Function,
    name_of_core,
    with_signature_of,
)
from estimator_bridge.verification.record.replay import names_of
from tf2_engine import tf_compat
from tf2_engine.types import Array, Graph, Nest, Object, Op, Session, Tensor

_METRICS = "metrics"
_ARGUMENT = "argument"
"""Prefix of the names under which arguments of a metric function are recorded."""


class CapturedMetrics(abc.ABC):
    """Captures the losses of one evaluation and the inputs of its metrics, batch by batch."""

    def __init__(self) -> None:
        self._capture = Capture()
        self._structure: Nest = None
        # Names of the arguments, once they are captured.
        self._names: list[str] | None = None

    def begin(self) -> None:
        self._capture.flush()

    def batches(self) -> list[Values]:
        return [step.get(_METRICS, {}) for step in self._capture.flush()]

    def recomputed(self, batches: Sequence[Values]) -> Values:
        names = self._names
        if (
            names is None
            or not batches
            or any(name not in one for one in batches for name in names)
        ):
            return {}
        return self._computed(names, batches)

    @abc.abstractmethod
    def _computed(self, names: Sequence[str], batches: Sequence[Values]) -> Values: ...

    def _keep(self, name: str, tensor: Tensor) -> Tensor:
        return self._capture.tensor(_METRICS, name, tensor)

    def _keep_arguments(self, arguments: Nest, keep: Function) -> Nest:
        self._structure = tf.nest.map_structure(lambda _: None, arguments)
        self._names = names_of(_ARGUMENT, arguments)
        pairs = zip(self._names, tf.nest.flatten(arguments), strict=True)
        return tf.nest.pack_sequence_as(arguments, [keep(name, each) for name, each in pairs])


class MetricValues(CapturedMetrics):
    """Captures the losses of one evaluation, and the arguments of its `eval_metrics`."""

    def __init__(self) -> None:
        super().__init__()
        self._cores: weakref.WeakKeyDictionary[Graph, int] = weakref.WeakKeyDictionary()
        self._metric_fn: Function | None = None

    def capturing(self, model_fn: Function, is_evaluating: Callable[[], bool]) -> Function:
        """Wraps a model_fn to capture metrics' inputs; seeds random ops equally on both sides."""

        @functools.wraps(model_fn)
        def call(*args: Object, **kwargs: Object) -> Object:
            with tf_compat.numbered_seeds():
                spec = model_fn(*args, **kwargs)
            return self._captured(spec) if is_evaluating() else spec

        return with_signature_of(model_fn, call)

    def _captured(self, spec: Object) -> Object:
        core = 0
        if not tf.executing_eagerly():
            core = self._cores.get(tf.get_default_graph(), -1) + 1
            self._cores[tf.get_default_graph()] = core
        changes = {}
        if spec.loss is not None:
            changes[LOSS] = self._keep_of_core(core, LOSS, spec.loss)
        if getattr(spec, "eval_metrics", None):
            self._metric_fn, tensors = spec.eval_metrics
            keep = functools.partial(self._keep_of_core, core)
            changes["eval_metrics"] = self._metric_fn, self._keep_arguments(tensors, keep)
        # Stock's constructor keeps eval_metrics in an attribute of the class; `_replace` does not.
        return type(spec)(**{**spec._asdict(), **changes})

    def _keep_of_core(self, core: int, name: str, tensor: Object) -> Object:
        is_tensor = isinstance(tensor, tf.Tensor)
        return self._keep(name_of_core(name, core), tensor) if is_tensor else tensor

    def batches(self) -> list[Values]:
        return [*map(_joined, super().batches())]

    def _computed(self, names: Sequence[str], batches: Sequence[Values]) -> Values:
        try:
            return self._run(names, batches)
        except (ValueError, TypeError, RuntimeError, tf.errors.OpError):
            return {}

    def _run(self, names: Sequence[str], batches: Sequence[Values]) -> Values:
        assert self._metric_fn is not None
        with tf.Graph().as_default(), tf.Session() as session:
            feeds = [_placeholder([batch[name] for batch in batches]) for name in names]
            tensors = tf.nest.pack_sequence_as(self._structure, feeds)
            with tf_compat.numbered_seeds():
                metrics = call_host_fn((self._metric_fn, tensors))
            ops = {str(name): _ops_of(metric) for name, metric in metrics.items()}
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(tf.tables_initializer())
            updates = [update for _, update in ops.values()]
            for batch in batches:
                values = [batch[name] for name in names]
                session.run(updates, dict(zip(feeds, values, strict=True)))
            return dict(session.run({name: value for name, (value, _) in ops.items()}))


class MetricVariablesHook(tf.train.SessionRunHook):
    """Reads the variables in which an evaluation sums its metrics, at the end of the evaluation."""

    def __init__(self) -> None:
        self.values: Values = {}

    def begin(self) -> None:
        variables = tf.get_collection(tf.GraphKeys.METRIC_VARIABLES)
        self._variables = {f"{METRIC_VARIABLE}{one.op.name}": one for one in variables}

    def end(self, session: Session) -> None:
        self.values = session.run(self._variables)


def _ops_of(metric: Object) -> tuple[Nest, Op]:
    return metric if isinstance(metric, tuple) else (metric.result(), tf.group(*metric.updates))


def _joined(step: Values) -> Values:
    joined: dict[str, list[Array]] = {}
    for name in sorted(step, key=lambda name: (name.partition(" (core ")[0], len(name), name)):
        joined.setdefault(name.partition(" (core ")[0], []).append(step[name])
    return {
        name: parts[0] if len(parts) == 1 else _concatenated(parts)
        for name, parts in joined.items()
    }


def _concatenated(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts) if parts[0].ndim else np.stack(parts)


def _placeholder(values: Sequence[Array]) -> Object:
    first = values[0]
    shape: list[int | None] | None = None
    if len({value.ndim for value in values}) == 1:
        sizes = zip(*(value.shape for value in values), strict=True)
        shape = [one[0] if len({*one}) == 1 else None for one in sizes]
    return tf.placeholder(tf.as_dtype(first.dtype), shape)
