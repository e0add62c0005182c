"""A model_fn traced once per emulated core, over shared variables, in one graph.

Core 0 makes the variables and later cores get the same ones. Only core 0's train_op and UPDATE_OPS
run: on a TPU every core applies the same summed gradients to its own copy, and moves averages in it
by its own part of the batch; core 0's copy is what is saved, and here it is the only one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.step.activation_proxy import StandIn
from tf2_engine import tf_compat

_SHARED_COLLECTIONS = (
    tf.GraphKeys.GLOBAL_VARIABLES,
    tf.GraphKeys.LOCAL_VARIABLES,
    tf.GraphKeys.TRAINABLE_VARIABLES,
    tf.GraphKeys.MODEL_VARIABLES,
    tf.GraphKeys.MOVING_AVERAGE_VARIABLES,
    # What must be started, on whichever core it was made.
    tf.GraphKeys.TABLE_INITIALIZERS,
    tf.GraphKeys.QUEUE_RUNNERS,
    # Depends on variables alone, and is only added where the variable is made.
    tf.GraphKeys.REGULARIZATION_LOSSES,
)

_UPDATES = tf.GraphKeys.UPDATE_OPS


class CoreTracer:
    """Opens the scope in which each core is traced.

    Args:
        num_cores: cores to trace.
    """

    def __init__(self, num_cores: int) -> None:
        self._num_cores = num_cores
        graph = tf.get_default_graph()
        self._graph = graph
        self._keras_names = tf_compat.KerasNames(graph)
        self._before = _collections(graph)
        self._variables = _SharedVariables()
        self._sums = _CrossReplicaSums(num_cores)

    @contextlib.contextmanager
    def core(self, number: int) -> Iterator[None]:
        """While it is open, what is traced is core `number`; cores come in ascending order."""
        after_first = number > 0
        before = len(self._graph.get_operations())
        if after_first:
            self._keras_names.restore()
            kept = _collections(self._graph)
            _set_collections(self._graph, self._before)
        self._sums.start(number)
        # Entered anew for each core, the scope counts unnamed layers from where it did before.
        with (
            tf.variable_scope(tf.get_variable_scope(), reuse=True if after_first else None),
            tf.variable_creator_scope(self._variables.creator(number)),
            tf_compat.tpu_computation(self._num_cores, self._sums.add),
        ):
            yield
        if after_first:
            # Gradients wait for them where minimize is called as batch normalization asks for.
            updates = {getattr(each, "op", each) for each in self._graph.get_collection(_UPDATES)}
            tf_compat.stop_waiting(self._graph.get_operations()[before:], updates)
            _set_collections(self._graph, kept)

    def join(self) -> None:
        """Connects the cross-replica sums of the cores, once all are traced.

        Raises:
            CoresDiffer: the cores did not make the same sums.
        """
        self._sums.join()


class _SharedVariables:
    """Gives later cores the variables that core 0 made outside of `get_variable`."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, Any]] = []

    def creator(self, number: int) -> Callable[..., Any]:
        position = 0

        def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            nonlocal position
            name = kwargs.get("name")
            if number == 0:
                variable = next_creator(**kwargs)
                self._made.append((name, variable))
                return variable
            # What `get_variable` made is reused without coming here, so it is passed over.
            while position < len(self._made):
                made_name, variable = self._made[position]
                position += 1
                if made_name == name:
                    return variable
            raise errors.CoresDiffer(
                f"Core {number} makes a variable {name!r} that core 0 did not make. The model_fn "
                "must build the same variables on every core."
            )

        return create


class _CrossReplicaSums:
    """Stands in for the CrossReplicaSum op: pairs the n-th sum of each core."""

    def __init__(self, num_cores: int) -> None:
        self._num_cores = num_cores
        self._calls: list[list[tuple[tf.Tensor, StandIn, list[list[int]]]]] = []

    def start(self, number: int) -> None:
        assert number == len(self._calls)
        self._calls.append([])

    def add(self, input: tf.Tensor, group_assignment: Any, name: str | None = None) -> tf.Tensor:
        """The op's signature; its arguments are passed by these names."""
        own = tf.identity(tf.convert_to_tensor(input), name=name)
        if self._num_cores == 1:
            return own
        groups = tf.get_static_value(tf.convert_to_tensor(group_assignment))
        total = StandIn(own.shape, own.dtype, "cross_replica_sum")
        self._calls[-1].append((own, total, groups.tolist()))
        return total.tensor

    def join(self) -> None:
        counts = [len(calls) for calls in self._calls]
        if len(set(counts)) > 1:
            raise errors.CoresDiffer(
                f"The cores make different numbers of cross-replica sums: {counts}. The model_fn "
                "must do the same on every core."
            )
        for calls in zip(*self._calls, strict=True):
            for group in calls[0][2]:
                total = tf.add_n([calls[core][0] for core in group])
                for core in group:
                    calls[core][1].resolve(total)


def _collections(graph: tf.Graph) -> dict[str, list[Any]]:
    keys = graph.get_all_collection_keys()
    return {key: list(graph.get_collection_ref(key)) for key in keys}


def _set_collections(graph: tf.Graph, wanted: dict[str, list[Any]]) -> None:
    for key in graph.get_all_collection_keys():
        if key not in _SHARED_COLLECTIONS and isinstance(key, str):
            graph.get_collection_ref(key)[:] = wanted.get(key, [])
