"""Computes metrics of `tf.compat.v1.metrics` on the host, from the values of each batch."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from tf2_engine.calls import call
from tf2_engine.types import Function, Nest, Object, Tensor


class Metrics:
    """The metrics that a function creates, which have a graph and a session of their own.

    Args:
        metric_fn: returns a dict from each metric's name to a pair (value, update op).
        values: the function's arguments for one batch. The arguments of every batch must have the
            same types and shapes.
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
