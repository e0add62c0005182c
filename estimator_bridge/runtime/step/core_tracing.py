"""Traces a model_fn once per emulated core, over shared variables, in one graph.

Core 0 creates the variables and later cores reuse them. Only core 0's train_op and UPDATE_OPS
run: on a TPU every core applies the same summed gradients to its own copy, and updates moving
averages in it by its part of the batch; core 0's copy is the one that is saved, and the only one
of the emulation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.step.activation_proxy import Placeholder
from tf2_engine import tf_compat
from tf2_engine.types import Graph, Object, Tensor, TensorLike, Variable

_SHARED_COLLECTIONS = (
    tf.GraphKeys.GLOBAL_VARIABLES,
    tf.GraphKeys.LOCAL_VARIABLES,
    tf.GraphKeys.TRAINABLE_VARIABLES,
    tf.GraphKeys.MODEL_VARIABLES,
    tf.GraphKeys.MOVING_AVERAGE_VARIABLES,
    # These must be started, whichever core made them.
    tf.GraphKeys.TABLE_INITIALIZERS,
    tf.GraphKeys.QUEUE_RUNNERS,
    # Depends on variables alone, and is only added where the variable is created.
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
        self._restore_keras_names = tf_compat.remember_keras_names(graph)
        self._initial_collections = _collections(graph)
        self._variables = _SharedVariables()
        self._sums = _CrossReplicaSums(num_cores)

    @contextlib.contextmanager
    def core(self, number: int) -> Iterator[None]:
        """Opens the scope of core `number`; cores are traced in ascending order."""
        after_first = number > 0
        num_ops = len(self._graph.get_operations())
        if after_first:
            self._restore_keras_names()
            collections_of_first = _collections(self._graph)
            _set_collections(self._graph, self._initial_collections)
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
            tf_compat.stop_waiting(self._graph.get_operations()[num_ops:], updates)
            _set_collections(self._graph, collections_of_first)

    def join(self) -> None:
        """Connects the cross-replica sums of the cores, once all are traced.

        Raises:
            CoresDiffer: the cores did not make the same sums.
        """
        self._sums.join()


class _SharedVariables:
    """Gives later cores the variables that core 0 created outside of `get_variable`."""

    def __init__(self) -> None:
        self._variables: list[tuple[str | None, Variable]] = []

    def creator(self, number: int) -> Callable[..., Variable]:
        """Returns the variable creator of a core."""
        later = iter(self._variables)

        def create(next_creator: Callable[..., Variable], **kwargs: Object) -> Variable:
            name = kwargs.get("name")
            if number == 0:
                variable = next_creator(**kwargs)
                self._variables.append((name, variable))
                return variable
            # `get_variable` reuses its own without calling this, so they are passed over.
            for name_on_first, variable in later:
                if name_on_first == name:
                    return variable
            raise errors.CoresDiffer(
                f"Core {number} makes a variable {name!r} that core 0 did not make. The model_fn "
                "must build the same variables on every core."
            )

        return create


class _CrossReplicaSums:
    """Replaces the CrossReplicaSum op: pairs the n-th sum of each core."""

    def __init__(self, num_cores: int) -> None:
        self._num_cores = num_cores
        self._calls: list[list[tuple[Tensor, Placeholder, list[list[int]]]]] = []

    def start(self, number: int) -> None:
        assert number == len(self._calls)
        self._calls.append([])

    def add(
        self, input: TensorLike, group_assignment: TensorLike, name: str | None = None
    ) -> Tensor:
        """Has the op's signature; its arguments are passed by these names."""
        term = tf.identity(tf.convert_to_tensor(input), name=name)
        if self._num_cores == 1:
            return term
        groups = tf.get_static_value(tf.convert_to_tensor(group_assignment))
        total = Placeholder(term.shape, term.dtype, "cross_replica_sum")
        self._calls[-1].append((term, total, groups.tolist()))
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


def _collections(graph: Graph) -> dict[str, list[Object]]:
    keys = graph.get_all_collection_keys()
    return {key: list(graph.get_collection_ref(key)) for key in keys}


def _set_collections(graph: Graph, contents: dict[str, list[Object]]) -> None:
    for key in graph.get_all_collection_keys():
        if key not in _SHARED_COLLECTIONS and isinstance(key, str):
            graph.get_collection_ref(key)[:] = contents.get(key, [])
