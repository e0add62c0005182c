"""Metrics of `tf.compat.v1.metrics`, updated on the host after each batch."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from tf2_engine.training.calls import call
from tf2_engine.types import Function, Nest, Object


class Metrics:
    """The metrics that a function returns, in their own graph and session.

    Args:
        metric_fn: returns (value, update) of each metric by name.
        values: its arguments for a batch, from which it learns their types and shapes.
    """

    def __init__(self, metric_fn: Function, values: Nest) -> None:
        graph = tf.Graph()
        with graph.as_default():
            self._feeds = tf.nest.map_structure(
                lambda value: tf.placeholder(value.dtype, [None, *value.shape[1:]]), values
            )
            metrics = call(metric_fn, self._feeds)
            self._values = {name: value for name, (value, _) in metrics.items()}
            self._updates = [update for _, update in metrics.values()]
            self._session = tf.Session(graph=graph)
            self._session.run([tf.local_variables_initializer(), tf.tables_initializer()])

    def update(self, values: Nest) -> None:
        feeds = zip(tf.nest.flatten(self._feeds), tf.nest.flatten(values), strict=True)
        self._session.run(self._updates, dict(feeds))

    def results(self) -> dict[str, Object]:
        """Returns the values over all batches, and closes the session."""
        results = self._session.run(self._values)
        self._session.close()
        return dict(results)
