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
from estimator_bridge.runtime.step.activation_proxy import placeholder
from estimator_bridge.runtime.step.ordered_sum import sum_in_order
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


class CoreTracer:
    """Opens the scope in which each core is traced."""

    def __init__(self, num_cores: int) -> None:
        self._num_cores = num_cores
        self._graph = tf.get_default_graph()
        self._restore_keras_names = tf_compat.remember_keras_names(self._graph)
        self._initial_collections = _collections(self._graph)
        self._variables: list[tuple[str | None, Variable]] = []
        # For each core its cross-replica sums: term, total, and the groups of cores.
        self._sums: list[list[tuple[Tensor, Tensor, list[list[int]]]]] = []

    @contextlib.contextmanager
    def core(self, number: int) -> Iterator[None]:
        """Opens the scope of core `number`; cores are traced in ascending order."""
        after_first = number > 0
        num_ops = len(self._graph.get_operations())
        if after_first:
            self._restore_keras_names()
            collections_of_first = _collections(self._graph)
            _set_collections(self._graph, self._initial_collections)
        self._sums.append([])
        # Entered anew for each core, the scope counts unnamed layers from where it did before.
        with (
            tf.variable_scope(tf.get_variable_scope(), reuse=True if after_first else None),
            tf.variable_creator_scope(_variable_creator(number, self._variables)),
            tf_compat.tpu_computation(self._num_cores, self._cross_replica_sum, number),
        ):
            yield
        if after_first:
            # Gradients wait for them where minimize is called as batch normalization asks for.
            updates = self._graph.get_collection(tf.GraphKeys.UPDATE_OPS)
            new_ops = self._graph.get_operations()[num_ops:]
            tf_compat.stop_waiting(new_ops, {getattr(each, "op", each) for each in updates})
            _set_collections(self._graph, collections_of_first)

    @property
    def has_sums(self) -> bool:
        """Whether the cores sum something among them."""
        return any(self._sums)

    def join(self) -> None:
        """Connects the n-th cross-replica sums of all cores; CoresDiffer if a core lacks one."""
        counts = [len(sums) for sums in self._sums]
        if len(set(counts)) > 1:
            raise errors.CoresDiffer(
                f"The cores make different numbers of cross-replica sums: {counts}. The model_fn "
                "must do the same on every core."
            )
        for sums in zip(*self._sums, strict=True):
            for group in sums[0][2]:
                total = sum_in_order([sums[core][0] for core in group])
                for core in group:
                    tf_compat.rewire(sums[core][1], total)

    def _cross_replica_sum(
        self, input: TensorLike, group_assignment: TensorLike, name: str | None = None
    ) -> Tensor:
        """Replaces the CrossReplicaSum op: has its signature, as arguments are passed by name."""
        term = tf.identity(tf.convert_to_tensor(input), name=name)
        if self._num_cores == 1:
            return term
        groups = tf.get_static_value(tf.convert_to_tensor(group_assignment))
        total = placeholder(term.shape, term.dtype, "cross_replica_sum")
        self._sums[-1].append((term, total, groups.tolist()))
        return total


def _variable_creator(
    number: int, created: list[tuple[str | None, Variable]]
) -> Callable[..., Variable]:
    """Returns a core's creator; later cores get core 0's variables, but those of `get_variable`."""
    later = iter(created)

    def create(next_creator: Callable[..., Variable], **kwargs: Object) -> Variable:
        name = kwargs.get("name")
        if number == 0:
            variable = next_creator(**kwargs)
            created.append((name, variable))
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


def _collections(graph: Graph) -> dict[str, list[Object]]:
    keys = graph.get_all_collection_keys()
    return {key: list(graph.get_collection_ref(key)) for key in keys}


def _set_collections(graph: Graph, contents: dict[str, list[Object]]) -> None:
    for key in graph.get_all_collection_keys():
        if key not in _SHARED_COLLECTIONS and isinstance(key, str):
            graph.get_collection_ref(key)[:] = contents.get(key, [])
