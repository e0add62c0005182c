"""TPUs: their protos, hardware and strategies, and how code is traced for them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import cast

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as _gen_xla_ops
from tensorflow.compiler.tf2xla.python import xla as _xla
from tensorflow.core.protobuf.tpu import optimization_parameters_pb2 as _optimization
from tensorflow.core.protobuf.tpu import topology_pb2 as _topology
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2 as _configuration
from tensorflow.python.distribute import tpu_strategy as _tpu_strategy
from tensorflow.python.ops import gen_tpu_ops as _gen_tpu_ops
from tensorflow.python.tpu import tpu_function as _tpu_function
from tensorflow.python.tpu import tpu_replication as _tpu_replication
from tensorflow.python.tpu import tpu_system_metadata as _tpu_system_metadata

from tf2_engine.types import Graph, Ids, Message, Object, Strategy, Tensor, TensorLike, Variable

PATCH_LOCK = threading.RLock()


@contextlib.contextmanager
def patched(module: object, name: str, value: object) -> Iterator[None]:
    with PATCH_LOCK:
        stock = getattr(module, name)
        setattr(module, name, value)
    try:
        yield
    finally:
        with PATCH_LOCK:
            setattr(module, name, stock)


def equal_by_identity() -> contextlib.AbstractContextManager[None]:
    """Makes == compare tensors and variables by identity, as in the graph of an estimator."""
    return patched(tf.Tensor, "_USE_EQUALITY", False)


TPUEmbeddingConfiguration = _configuration.TPUEmbeddingConfiguration
OptimizationParameters = _optimization.OptimizationParameters
GradientAccumulationStatus = _optimization.GradientAccumulationStatus
HotIdReplicationConfiguration = _optimization.HotIdReplicationConfiguration
LowDimensionalPackingStatus = _optimization.LowDimensionalPackingStatus


tpu_shard_context: Callable[[int], contextlib.AbstractContextManager[None]]
tpu_shard_context = _tpu_function.tpu_shard_context
"""Sets the number of cores that stock's code, such as its TPU columns, reads during tracing."""


def in_tpu_shard_context() -> bool:
    return _tpu_function.get_tpu_context().number_of_shards is not None


@contextlib.contextmanager
def tpu_computation(
    num_cores: int, cross_replica_sum: Callable[..., Tensor], core: TensorLike = 0
) -> Iterator[None]:
    """Makes code that is traced inside the context behave as on the TPU core number `core`.

    `cross_replica_sum` computes sums over cores, because the op for this needs a TPU's kernel.
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


# The same op under both names that programs use. On a CPU, this op would end the process.
_NUMBERS_OF_CORES = ((_gen_xla_ops, "xla_replica_id"), (_xla, "replica_id"))


def replica_id() -> Tensor:
    return _xla.replica_id()


def _number_of(core: TensorLike, name: str | None = None) -> Tensor:
    return tf.identity(core, name=name)


_graphs_of_one_replica: weakref.WeakSet[Graph] = weakref.WeakSet()


def trace_on_one_replica(graph: Graph) -> None:
    """In this graph, replaces each sum over replicas, which needs a TPU's kernel, by its input."""
    with PATCH_LOCK:
        if not isinstance(_gen_tpu_ops.cross_replica_sum, _OrOnOneReplica):
            stock = _gen_tpu_ops.cross_replica_sum
            _gen_tpu_ops.cross_replica_sum = _OrOnOneReplica(stock, _sum_of_one)
            for module, name in _NUMBERS_OF_CORES:
                number = functools.partial(_number_of, 0)
                setattr(module, name, _OrOnOneReplica(getattr(module, name), number))
        _graphs_of_one_replica.add(graph)


class _OrOnOneReplica:
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
    """Returns the TPUReplicateContext of the current TPU computation. Each core has its own."""
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


def tpu_metadata(metadata: object) -> contextlib.AbstractContextManager[None]:
    query = "_query_tpu_system_metadata"
    return patched(_tpu_system_metadata, query, lambda *_, **__: metadata)


def tpu_hardware(*, embedding_feature: str, sparse_cores: int = 0) -> Message:
    feature = _topology.TPUHardwareFeature
    return feature(
        embedding_feature=feature.EmbeddingFeature.Value(embedding_feature),
        num_embedding_devices_per_chip=sparse_cores,
    )


def embedding_hardware(strategy: Strategy) -> str | None:
    feature = getattr(strategy.extended, "tpu_hardware_feature", None)
    if feature is None or feature.tpu_hardware_feature_proto is None:
        return None
    return str(feature.embedding_feature.value)


def sparse_cores_of(strategy: Strategy) -> int:
    feature = getattr(strategy.extended, "tpu_hardware_feature", None)
    return 0 if feature is None else int(feature.num_embedding_devices_per_chip)


def sharded_variable_creator(strategy: Strategy) -> Callable[..., Variable]:
    # TensorFlow 2.15 does not have this module, and no strategy there needs it.
    module = importlib.import_module("tensorflow.python.tpu.tpu_embedding_v3")
    return cast(Callable[..., Variable], module.make_sharded_variable_creator(strategy))


def around_sparse_core_ids(
    before: Callable[[Ids], Ids], after: Callable[[Tensor, object], None]
) -> None:
    """Makes stock's TPUEmbeddingV2 call two functions whenever it reads ids.

    `before` converts the ids. `after` gets an output of the op that reads the ids, and the feature.
    """
    embedding, name = tf.tpu.experimental.embedding.TPUEmbeddingV2, _READ_IDS
    stock = getattr(embedding, name)

    def read(_: type, ids: Ids, weights: object, feature: object, *rest: object) -> object:
        outputs = stock(before(ids), weights, feature, *rest)
        after(outputs[0][0], feature)
        return outputs

    setattr(embedding, name, classmethod(read))


_READ_IDS = "_convert_input_feature_to_list_of_coo_tensors"


def reach_sharded_variables_by_position() -> None:
    """Makes sharded, unpacked variables usable on a single device.

    Stock selects the part of the variable by device, but all software cores are on one device.
    """
    kind = importlib.import_module("tensorflow.python.tpu.tpu_embedding_v3")
    variable = kind.TPUEmbeddingShardedVariable
    read, assign = variable.read_from_device, variable.assign_on_device

    def part(self: Object, device: str) -> Object:
        devices = list(self.distribute_strategy.extended.worker_devices)
        return self.values[devices.index(tf.DeviceSpec.from_string(device).to_string())]

    def read_from_device(self: Object, device: str) -> Object:
        if self._packed_var is not None:
            return read(self, device)
        return part(self, device).read_value()

    def assign_on_device(self: Object, device: str, value: object) -> None:
        if self._packed_var is not None:
            assign(self, device, value)
        else:
            part(self, device).assign(value)

    variable.read_from_device, variable.assign_on_device = read_from_device, assign_on_device


def tpu_devices(strategy: Strategy) -> tuple[list[list[str]], int | None]:
    """Returns a TPUStrategy's devices, [replica][core], and the number of cores per replica.

    The number is None if there is no device assignment. A device assignment configures the TPU for
    model parallelism.
    """
    extended = strategy.extended
    devices = getattr(extended, "_tpu_devices", None)
    if devices is None:  # The strategy is a stand-in for a TPUStrategy.
        devices = [[device] for device in extended.worker_devices]
    assignment = getattr(extended, "_device_assignment", None)
    return (
        [[str(device) for device in replica] for replica in devices],
        assignment.num_cores_per_replica if assignment else None,
    )


TPUExtended = _tpu_strategy.TPUExtended
"""The class that implements TPUStrategy. The software TPU's implementation derives from it."""


def tpu_replica_context(
    strategy: Strategy, replica: int
) -> contextlib.AbstractContextManager[object]:
    return _tpu_strategy._TPUReplicaContext(strategy, replica_id_in_sync_group=replica)


def do_not_pack_variables(strategy: Strategy) -> None:
    """Keeps a strategy from packing the copies of a variable into one handle.

    A packed handle selects the copy by device, but all software cores are on the same device.
    """
    strategy._enable_packed_variable_in_eager_mode = False
