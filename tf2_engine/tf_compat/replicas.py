"""Replicas: values with a part for each, calls in the context of each, their losses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib as _distribute_lib
from tensorflow.python.distribute import distribute_utils as _distribute_utils
from tensorflow.python.distribute import values as _distribute_values
from tensorflow.python.framework import ops as _ops

from tf2_engine.types import Graph, Nest, Object, Strategy

per_replica: Callable[[tuple[Object, ...]], Object] = _distribute_values.PerReplica
"""Returns one value per replica as the distributed value that strategies pass around."""

select_replica: Callable[[int, Nest], Nest] = _distribute_utils.select_replica
"""Returns a nest with the values of one replica."""

regroup: Callable[[tuple[Nest, ...]], Nest] = _distribute_utils.regroup
"""Returns one nest of distributed values for a nest per replica."""


def strategy_in_scope() -> Strategy:
    """Returns the same as `tf.distribute.get_strategy`, and starts no thread.

    TensorFlow makes its default graph to look there for a strategy, and a thread with that. Where
    there is no graph yet, no scope of a strategy is open. A thread that starts while the process
    forks would leave a lock in the fork, on which all threads of the fork would wait.
    """
    graphs = _ops._default_graph_stack
    if graphs.stack or graphs._global_default_graph is not None:
        return tf.distribute.get_strategy()
    return _distribute_lib._get_default_strategy()


def call_for_each_replica(
    strategy: Strategy, function: Callable[..., Nest], arguments: Sequence[tuple[Object, ...]]
) -> Nest:
    """Calls a function in the context of each replica, with the arguments of that replica."""
    # OneDeviceStrategy hands the arguments on as they are.
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
    """Returns whether an optimizer divided the loss of each replica by their number."""
    return bool(getattr(graph, "_is_loss_scaled_by_optimizer", False))
