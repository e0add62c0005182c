"""Batches of functions that are scheduled: they wait while the function is traced.

Workers run functions at the same time. A batch that waited in a queue of the cluster could be taken
by another function than the one that enqueued it, so the calls of a step are matched in one trace,
as those in a `tf.Graph` are, and nothing is left behind when a function fails or runs again.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.backends.host.batch_queue import BatchQueues, GraphBatchQueue
from tf2_engine.plan import Plan
from tf2_engine.types import Op


class TracedQueues(BatchQueues):
    """The queues of an engine whose steps are tf.functions, by the name of the batches."""

    def __init__(self, plan: Plan) -> None:
        self._plan = dataclasses.replace(plan, num_cores=1)
        self._of_names: dict[str | None, GraphBatchQueue] = {}

    def named(self, name: str | None) -> GraphBatchQueue:
        """Returns the queue of a name; raises OutOfOrder outside of a tf.function."""
        if not tf.inside_function():
            raise errors.OutOfOrder(
                "Under ParameterServerStrategy `enqueue`, `dequeue` and `apply_gradients` of a "
                "step are called in one tf.function, which `ClusterCoordinator.schedule` gives to "
                "a worker. To look up by itself there is `embedding_lookup`."
            )
        return self._of_names.setdefault(name, GraphBatchQueue(self._plan))

    def reset(self) -> Op:
        return [queue.reset() for queue in self._of_names.values()]
