"""Calls the functions of a model that run on the host: its host_call and its metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from tf2_engine import tf_compat
from tf2_engine.calls import call
from tf2_engine.types import Array, Function, Nest, Object, Tensor


class HostCall:
    """A host_call of a `ModelSpec` in its own graph and session, as legacy programs run it."""

    def __init__(self, host_call: tuple[Function, Nest] | None) -> None:
        self._host_call = host_call
        self._session: tf.Session | None = None

    def run(self, of_replicas: Sequence[Nest], step: int) -> None:
        """Calls the function with the arguments of all replicas, joined along the first axis."""
        if self._host_call is None:
            return
        arrays = tf.nest.map_structure(
            lambda *parts: _joined([part.numpy() for part in parts]), *of_replicas
        )
        if self._session is None:
            self._build(self._host_call[0], arrays)
        assert self._session is not None
        feeds = zip(tf.nest.flatten(self._feeds), tf.nest.flatten(arrays), strict=True)
        self._session.run(self._ops, {self._step: step, **dict(feeds)})

    def close(self) -> None:
        if self._session is not None:
            self._session.run(self._flush)
            self._session.close()

    def _build(self, function: Function, arrays: Nest) -> None:
        with tf.Graph().as_default():
            self._feeds = tf.nest.map_structure(
                lambda array: tf.placeholder(array.dtype, array.shape), arrays
            )
            self._step = tf.placeholder(tf.int64, [])
            variable = tf.train.create_global_step()
            with tf.control_dependencies([variable.assign(self._step)]):
                results = call(function, self._feeds)
            ops = [*tf.nest.flatten(results), *(tf.summary.all_v2_summary_ops() or ())]
            self._ops = [op for op in ops if isinstance(op, tf.Tensor | tf.Operation)]
            writers = tf_compat.summary_writer_initializers()
            self._flush = [tf.raw_ops.FlushSummaryWriter(writer=op.inputs[0]) for op in writers]
            self._session = tf.Session()
            initializers = (tf.global_variables_initializer(), tf.local_variables_initializer())
            self._session.run([*initializers, *writers])


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class Metrics:
    """The metrics that a function creates, which have a graph and a session of their own.

    Args:
        metric_fn: returns a dict from each metric's name to a pair (value, update op).
        values: the function's arguments for one batch. Later batches have the same types and
            shapes.
    """

    def __init__(self, metric_fn: Function, values: Nest) -> None:
        graph = tf.Graph()
        with graph.as_default():
            feeds = tf.nest.map_structure(_placeholder, values, expand_composites=True)
            metrics = call(metric_fn, feeds) or {}
            self._feeds = _tensors_in(feeds)
            self._values = {name: value for name, (value, _) in metrics.items()}
            self._updates = [update for _, update in metrics.values()]
            self._session = tf.Session(graph=graph)
            self._session.run([tf.local_variables_initializer(), tf.tables_initializer()])

    def update(self, values: Nest) -> None:
        feeds = zip(self._feeds, _tensors_in(values), strict=True)
        self._session.run(self._updates, dict(feeds))

    def results(self) -> dict[str, Object]:
        results = dict(self._session.run(self._values))
        self._session.close()
        return results


def _tensors_in(values: Nest) -> list[Tensor]:
    return [*filter(_is_tensor, tf.nest.flatten(values, expand_composites=True))]


def _is_tensor(value: Object) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _placeholder(value: Object) -> Object:
    if not _is_tensor(value):
        return value
    shape = tf.TensorShape(value.shape)
    return tf.placeholder(value.dtype, [None, *shape[1:]] if shape.rank else shape)
