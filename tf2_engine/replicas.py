"""Where a call comes from: all replicas at once, or one replica among several.

Inside `strategy.run` each replica calls for itself. The host engine works on global steps, so the
calls of all replicas meet, one call is made for them, and each gets its part of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors, tf_compat


def count() -> int:
    """Returns the number of replicas of the strategy in whose scope this is called."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def inside_one() -> bool:
    """Whether one of several replicas is calling."""
    return count() > 1 and not tf.distribute.in_cross_replica_context()


def together(call: str, function: Callable[[list[Any]], list[Any] | None], value: Any) -> Any:
    """Calls a function once for all replicas.

    Args:
        call: how messages name the call.
        function: takes the values of all replicas; returns one value for each, or None.
        value: this replica's: a nest of tensors.

    Returns:
        This replica's part of the result.

    Raises:
        ControlFlow: a replica calls inside control flow, where the replicas cannot meet.
    """

    def merged(strategy: tf.distribute.Strategy, *values: Any) -> Any:
        per_replica = split(strategy, values[0])
        results = function(per_replica)
        if results is None:
            return None
        return tf.nest.map_structure(lambda *parts: tf_compat.per_replica(parts), *results)

    context = tf.distribute.get_replica_context()
    try:
        return context.merge_call(merged, args=(value,))
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        raise errors.ControlFlow(
            f"`{call}` is called inside control flow (a tf.cond, say) inside `strategy.run`, where "
            "the replicas cannot meet. Call it outside of the control flow."
        ) from error


def split(strategy: tf.distribute.Strategy, nest: Any) -> list[Any]:
    """Returns, for each replica, the nest with that replica's tensors as leaves.

    Raises:
        InvalidInput: a leaf has another number of values than there are replicas.
    """
    number = strategy.num_replicas_in_sync
    leaves: list[Sequence[Any]] = []
    for leaf in tf.nest.flatten(nest):
        local = strategy.experimental_local_results(leaf)
        if isinstance(leaf, (bool, int)) or leaf is None:
            local = (leaf,) * number
        if len(local) != number:
            raise errors.InvalidInput(
                f"{leaf!r} is one value for {number} replicas; pass what an iterator of a "
                "distributed dataset gives, one value per replica."
            )
        leaves.append(local)
    return [
        tf.nest.pack_sequence_as(nest, [leaf[replica] for leaf in leaves])
        for replica in range(number)
    ]
