"""Traces code as for a TPU: sets the number of cores, sums over cores, and control flow context."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as _gen_xla_ops
from tensorflow.compiler.tf2xla.python import xla as _xla
from tensorflow.python.ops import gen_tpu_ops as _gen_tpu_ops
from tensorflow.python.tpu import tpu_function as _tpu_function
from tensorflow.python.tpu import tpu_replication as _tpu_replication

from tf2_engine.tf_compat.patching import PATCH_LOCK, patched
from tf2_engine.types import Graph, Object, Tensor, TensorLike

tpu_shard_context: Callable[[int], contextlib.AbstractContextManager[None]]
tpu_shard_context = _tpu_function.tpu_shard_context
"""Sets the number of cores that traced code, such as stock's TPU columns, reads."""


def in_tpu_shard_context() -> bool:
    return _tpu_function.get_tpu_context().number_of_shards is not None


@contextlib.contextmanager
def tpu_computation(
    num_cores: int, cross_replica_sum: Callable[..., Tensor], core: TensorLike = 0
) -> Iterator[None]:
    """Makes code that is traced inside the context behave as on a TPU core.

    `cross_replica_sum` computes sums over cores, and `core` is the index of the core. They replace
    two ops that have no kernel outside a TPU.
    """
    number = functools.partial(_number_of, core)
    with PATCH_LOCK, contextlib.ExitStack() as stack:
        stack.enter_context(patched(_gen_tpu_ops, "cross_replica_sum", cross_replica_sum))
        for module, name in _NUMBERS_OF_CORES:
            stack.enter_context(patched(module, name, number))
        stack.enter_context(tpu_shard_context(num_cores))
        _cores_traced.append(core)
        stack.callback(_cores_traced.pop)
        yield


_cores_traced: list[TensorLike] = []


def core_now() -> TensorLike:
    return _cores_traced[-1] if _cores_traced else 0


# The same op under both names that programs use. On a CPU the op ends the process.
_NUMBERS_OF_CORES = ((_gen_xla_ops, "xla_replica_id"), (_xla, "replica_id"))


def replica_id() -> Tensor:
    return _xla.replica_id()


def _number_of(core: TensorLike, name: str | None = None) -> Tensor:
    return tf.identity(core, name=name)


_graphs_of_one_replica: weakref.WeakSet[Graph] = weakref.WeakSet()


def trace_on_one_replica(graph: Graph) -> None:
    """Makes sums over replicas return their input, in a graph without a TPU.

    A model with a CrossShardOptimizer would need kernels that only TPUs have.
    """
    with PATCH_LOCK:
        if not isinstance(_gen_tpu_ops.cross_replica_sum, _OrOnOneReplica):
            stock = _gen_tpu_ops.cross_replica_sum
            _gen_tpu_ops.cross_replica_sum = _OrOnOneReplica(stock, _sum_of_one)
            for module, name in _NUMBERS_OF_CORES:
                number = functools.partial(_number_of, 0)
                setattr(module, name, _OrOnOneReplica(getattr(module, name), number))
        _graphs_of_one_replica.add(graph)


class _OrOnOneReplica:
    """Takes the place of an op, and calls another function in graphs of one replica.

    The same holds for functions that are traced inside such a graph.
    """

    def __init__(self, op: Callable[..., Tensor], on_one: Callable[..., Tensor]) -> None:
        self._op, self._on_one = op, on_one

    def __call__(self, *args: object, **settings: object) -> Tensor:
        graph = tf.compat.v1.get_default_graph()
        while graph is not None:
            if graph in _graphs_of_one_replica:
                return self._on_one(*args, **settings)
            graph = getattr(graph, "outer_graph", None)
        return self._op(*args, **settings)


def _sum_of_one(input: TensorLike, group_assignment: TensorLike, name: str | None = None) -> Tensor:
    return tf.identity(input, name=name)


TPUReplicateContext = _tpu_replication.TPUReplicateContext
"""The control flow context in which stock traces a TPU computation."""


def tpu_computation_graph() -> Graph | None:
    """Returns the graph in which the current TPU computation began, or None.

    Inside control flow and tf.functions this graph is not the default graph.
    """
    return _tpu_computation()[0]


def tpu_computation_context() -> Object | None:
    """Returns the TPUReplicateContext of the current TPU computation, or None.

    The software TPU traces a computation once per core, each time in a new context.
    """
    return _tpu_computation()[1]


def _tpu_computation() -> tuple[Graph | None, Object | None]:
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if isinstance(context, TPUReplicateContext):
                return graph, context
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return None, None
