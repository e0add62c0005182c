"""Functions for strategies, distributed values and nests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib as _distribute_lib
from tensorflow.python.distribute import distribute_utils as _distribute_utils
from tensorflow.python.distribute import values as _distribute_values
from tensorflow.python.framework import ops as _ops
from tensorflow.python.util import nest as _nest

from tf2_engine.types import Graph, Nest, Object, Strategy

nest = _nest
"""TensorFlow's internal functions for nested structures."""

flatten_with_paths: Callable[[Nest], list[tuple[tuple[str | int, ...], Object]]]
flatten_with_paths = _nest.flatten_with_tuple_paths
"""Lists the leaves of a nest, each with its path of keys and positions."""


per_replica: Callable[[tuple[Object, ...]], Object] = _distribute_values.PerReplica
"""Combines one value per replica into a distributed value of the strategy."""

select_replica: Callable[[int, Nest], Nest] = _distribute_utils.select_replica

regroup: Callable[[tuple[Nest, ...]], Nest] = _distribute_utils.regroup
"""Combines one nest per replica into one nest of distributed values."""


def strategy_in_scope() -> Strategy:
    """Like `tf.distribute.get_strategy`, but starts no thread.

    TensorFlow's function would create the default graph, and with it a thread. A fork could inherit
    a lock that this thread holds. Without a graph, no strategy is in scope.
    """
    graphs = _ops._default_graph_stack
    if graphs.stack or graphs._global_default_graph is not None:
        return tf.distribute.get_strategy()
    return _distribute_lib._get_default_strategy()


def call_for_each_replica(
    strategy: Strategy, function: Callable[..., Nest], arguments: Sequence[tuple[Object, ...]]
) -> Nest:
    # OneDeviceStrategy does not select a replica's arguments.
    alone = strategy.num_replicas_in_sync == 1
    return strategy.extended.call_for_each_replica(
        tf.autograph.experimental.do_not_convert(function),
        args=arguments[0] if alone else tuple(map(per_replica, zip(*arguments, strict=True))),
    )


@contextlib.contextmanager
def estimator_scope(strategy: Strategy) -> Iterator[None]:
    """Opens a strategy's scope in which TensorFlow 1's optimizers scale the losses of replicas."""
    with strategy.scope(), strategy._scale_loss_for_estimator_enabled():
        yield


def is_loss_scaled(graph: Graph) -> bool:
    return bool(getattr(graph, "_is_loss_scaled_by_optimizer", False))
