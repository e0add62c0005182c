"""The seam: every private or version-dependent name of TensorFlow that the project uses.

Nothing else in the project imports `tensorflow.python`, `tensorflow.core` or keras internals. The
names are in order of subject: protos, random numbers, graphs, TPUs, TPU feature columns, replicas,
estimators, variables and checkpoints, Keras, Keras models as estimators, feature columns and layers
of canned estimators.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import cast

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as _gen_xla_ops
from tensorflow.compiler.tf2xla.python import xla as _xla
from tensorflow.core.protobuf import tensor_bundle_pb2 as _bundle
from tensorflow.core.protobuf import trackable_object_graph_pb2 as _objects
from tensorflow.core.protobuf.tpu import optimization_parameters_pb2 as _optimization
from tensorflow.core.protobuf.tpu import topology_pb2 as _topology
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2 as _configuration
from tensorflow.python.checkpoint import checkpoint as _checkpoint
from tensorflow.python.checkpoint import checkpoint_management as _checkpoint_management
from tensorflow.python.checkpoint import graph_view as _graph_view
from tensorflow.python.data.ops import iterator_ops as _iterator_ops
from tensorflow.python.distribute import distribute_utils as _distribute_utils
from tensorflow.python.distribute import sharded_variable as _sharded_variable
from tensorflow.python.distribute import tpu_strategy as _tpu_strategy
from tensorflow.python.distribute import values as _distribute_values
from tensorflow.python.eager import cancellation as _cancellation
from tensorflow.python.eager import context as _eager_context
from tensorflow.python.eager import record as _record
from tensorflow.python.feature_column import feature_column as _feature_column
from tensorflow.python.feature_column import feature_column_v2 as _feature_column_v2
from tensorflow.python.feature_column import sequence_feature_column as _sequence_column
from tensorflow.python.framework import kernels as _kernels
from tensorflow.python.framework import ops as _ops
from tensorflow.python.framework import random_seed as _random_seed
from tensorflow.python.ops import array_ops as _array_ops
from tensorflow.python.ops import clustering_ops as _clustering_ops
from tensorflow.python.ops import control_flow_ops as _control_flow_ops
from tensorflow.python.ops import gen_random_ops as _gen_random_ops
from tensorflow.python.ops import gen_stateless_random_ops as _gen_stateless_random_ops
from tensorflow.python.ops import gen_tpu_ops as _gen_tpu_ops
from tensorflow.python.ops import init_ops as _init_ops
from tensorflow.python.ops import init_ops_v2 as _init_ops_v2
from tensorflow.python.ops import resource_variable_ops as _resource_variable_ops
from tensorflow.python.ops import summary_ops_v2 as _summary_ops
from tensorflow.python.ops import variable_scope as _variable_scope
from tensorflow.python.saved_model import save_context as _save_context
from tensorflow.python.saved_model.model_utils import export_output as _export_output
from tensorflow.python.saved_model.model_utils import export_utils as _export_utils
from tensorflow.python.tpu import feature_column as _columns
from tensorflow.python.tpu import feature_column_v2 as _columns_v2
from tensorflow.python.tpu import tpu_function as _tpu_function
from tensorflow.python.tpu import tpu_replication as _tpu_replication
from tensorflow.python.tpu import tpu_system_metadata as _tpu_system_metadata
from tensorflow.python.trackable import base as _trackable_base
from tensorflow.python.training import evaluation as _evaluation
from tensorflow.python.training import saver as _saver
from tensorflow.python.training import training_util as _training_util
from tensorflow.python.training.saving import saveable_object as _saveable_object
from tensorflow.python.util import nest as _nest

from tf2_engine import errors, log
from tf2_engine.types import (
    Array,
    DType,
    Graph,
    Message,
    Nest,
    Object,
    Op,
    Strategy,
    Tensor,
    TensorLike,
    Variable,
)

TESTED = ("2.15", "2.21")
if ".".join(tf.__version__.split(".")[:2]) not in TESTED:
    log.PlainLogger(__name__).warning(
        "TensorFlow %s: this project is tested with %s; others should work, but check the results.",
        tf.__version__,
        " and ".join(TESTED),
    )

# Protos and plain classes. The protos of the TPU configuration and of checkpoints (the entries of
# an index, and the graph of their objects) have no public name.

TPUEmbeddingConfiguration = _configuration.TPUEmbeddingConfiguration
OptimizationParameters = _optimization.OptimizationParameters
GradientAccumulationStatus = _optimization.GradientAccumulationStatus
HotIdReplicationConfiguration = _optimization.HotIdReplicationConfiguration
LowDimensionalPackingStatus = _optimization.LowDimensionalPackingStatus
BundleHeader = _bundle.BundleHeaderProto
BundleEntry = _bundle.BundleEntryProto
TrackableObjectGraph = _objects.TrackableObjectGraph

ShardInfo = _trackable_base.ShardInfo
"""The argument of initializers of sharded tables in stock; users' functions may name the class."""

flatten_with_paths: Callable[[Nest], list[tuple[tuple[str | int, ...], Object]]]
nest = _nest
"""TensorFlow's functions for nested structures, more than `tf.nest` has."""

summary_ops = _summary_ops
"""Summaries whose step is the global one, as `tf.contrib.summary` had them."""

flatten_with_paths = _nest.flatten_with_tuple_paths
"""Returns the leaves of a nest, each with the keys and positions that lead to it."""


def tf1_style_regularizers(module: Object) -> dict[str, Callable[[], Tensor | None]]:
    """Returns functions that compute regularization losses, by variable.

    Args:
        module: has a method that `tf.compat.v1.keras.utils.track_tf1_style_variables` decorates;
            its documentation names the attribute.
    """
    store = getattr(module, "_tf1_style_var_store", None)
    return {} if store is None else dict(store._regularizers)


# Random numbers.

_PATCH_LOCK = threading.RLock()


@contextlib.contextmanager
def _patched(module: Object, name: str, value: Object) -> Iterator[None]:
    """Sets `name` of a module to another value, in the context."""
    with _PATCH_LOCK:
        stock = getattr(module, name)
        setattr(module, name, value)
    try:
        yield
    finally:
        with _PATCH_LOCK:
            setattr(module, name, stock)


@contextlib.contextmanager
def numbered_seeds(first: int = 0) -> Iterator[None]:
    """Numbers the random ops that are given no seed, in the context, from `first` on.

    TensorFlow would take the number of ops that the graph has so far. Initial values have numbers
    of their own: a function that makes variables is traced once more without making them.

    What an op of a graph draws depends on its seed and on how often it has run, and on nothing
    else: a kernel in the body of a function begins anew in each executor, which a session makes
    whenever it fetches something else.
    """
    stock = _random_seed.get_seed
    of_variables = itertools.count(first)
    numbers = [itertools.count(first)]

    def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
        return stock(next(numbers[-1]) if op_seed is None else op_seed)

    def creator(next_creator: Callable[..., Variable], **settings: Object) -> Variable:
        numbers.append(of_variables)
        try:
            return next_creator(**settings)
        finally:
            numbers.pop()

    def is_counted() -> bool:
        return len(numbers) == 1 and not tf.executing_eagerly()

    with contextlib.ExitStack() as stack:
        stack.enter_context(_patched(_random_seed, "get_seed", get_seed))
        stack.enter_context(tf.variable_creator_scope(creator))
        for name in _STATELESS:
            counted = _counted(name, is_counted)
            stack.enter_context(_patched(_gen_random_ops, name, counted))
        yield


class _Runs:
    """The number of runs of an op since random numbers began anew."""

    beginnings = 0

    def __init__(self) -> None:
        self._number, self._beginning = 0, _Runs.beginnings

    def next(self) -> int:
        """Returns the number of runs before this one."""
        if self._beginning != _Runs.beginnings:
            self._number, self._beginning = 0, _Runs.beginnings
        self._number += 1
        return self._number - 1


def begin_random_numbers_anew() -> None:
    """Lets the random ops made in `numbered_seeds` draw as if none of them had run."""
    _Runs.beginnings += 1


_STATELESS = {
    "random_uniform": (_gen_stateless_random_ops.stateless_random_uniform, ("shape", "dtype")),
    "random_uniform_int": (
        _gen_stateless_random_ops.stateless_random_uniform_int,
        ("shape", "minval", "maxval"),
    ),
    "random_standard_normal": (
        _gen_stateless_random_ops.stateless_random_normal,
        ("shape", "dtype"),
    ),
    "truncated_normal": (_gen_stateless_random_ops.stateless_truncated_normal, ("shape", "dtype")),
}
"""Random ops that keep a state: for each that which is given one, and what both take first."""


def _counted(name: str, is_on: Callable[[], bool]) -> Callable[..., Tensor]:
    """Returns a random op whose state is how often it has run, where `is_on`."""
    stateful = getattr(_gen_random_ops, name)
    stateless, names = _STATELESS[name]

    def draw(*args: Object, **kwargs: Object) -> Tensor:
        if not is_on():
            return stateful(*args, **kwargs)
        arguments = {**dict(zip((*names, "seed", "seed2", "name"), args, strict=False)), **kwargs}
        seeds = [arguments.pop(name, None) or 0 for name in ("seed", "seed2")]
        runs = _Runs()

        def state() -> Array:
            return np.array([(seeds[0] << 31) + seeds[1], runs.next()], np.int64)

        counted = tf.numpy_function(state, [], tf.int64)
        counted.set_shape([2])
        return stateless(**arguments, seed=counted)

    return draw


# Graphs: edges and attributes of ops that exist already.


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Has ops run at once, also where a graph is the default one; it is a decorator, too."""
    with _eager_context.eager_mode():
        yield


def rewire(stand_in: Tensor, source: Tensor) -> None:
    """Makes `source` the input of the Identity op that made `stand_in`, before any session runs.

    So a model can be traced with tensors that are only known after it has been traced.
    """
    stand_in.op._update_input(0, source)


def replace_input(ops: Sequence[Op], old: Tensor, new: Tensor) -> None:
    """Makes ops that read a tensor read another one, before any session runs."""
    for op in ops:
        for position, tensor in enumerate(op.inputs):
            if tensor.name == old.name:
                op._update_input(position, new)


def run_after(op: Op, before: Op) -> None:
    """Makes an op wait for another one of its graph."""
    op._add_control_input(before)


def stop_waiting(ops: Sequence[Op], awaited: Collection[Op]) -> None:
    """Removes `awaited` from the control inputs of ops, before any session runs."""
    for op in ops:
        control_inputs = op.control_inputs
        kept = [other for other in control_inputs if other not in awaited]
        if len(kept) < len(control_inputs):
            op._remove_all_control_inputs()
            op._add_control_inputs(kept)


LAYER_ATTRIBUTE = "_tpu_embedding_layer"
"""The attribute of an op by which graph rewrites pair enqueue, receive and send ops."""

ARGUMENT_ATTRIBUTE = "_tpu_input_identity"
"""The attribute by which stock marks the ops that bring the arguments of a TPU computation."""


def set_attributes(op: Op, attributes: Mapping[str, bool | int | str]) -> None:
    """Puts attributes on an op that its definition does not know; kernels can read them."""
    fields = {bool: "b", int: "i", str: "s"}
    for name, value in attributes.items():
        stored = value.encode() if isinstance(value, str) else value
        op._set_attr(name, tf.compat.v1.AttrValue(**{fields[type(value)]: stored}))


def num_kernels(op_name: str) -> int:
    """Returns how many kernels an op has in this process, for any kind of device."""
    return len(_kernels.get_registered_kernels_for_op(op_name).kernel)


# TPUs: the computation that is traced, the hardware, the strategy.

tpu_shard_context: Callable[[int], contextlib.AbstractContextManager[None]]
tpu_shard_context = _tpu_function.tpu_shard_context
"""Tells the code that is traced over how many cores it runs; nothing is patched. Stock's TPU
feature columns and CrossShardOptimizer read it."""


def in_tpu_shard_context() -> bool:
    """Returns whether the code that is traced was told over how many cores it runs."""
    return _tpu_function.get_tpu_context().number_of_shards is not None


@contextlib.contextmanager
def tpu_computation(
    num_cores: int, cross_replica_sum: Callable[..., Tensor], core: int = 0
) -> Iterator[None]:
    """Makes the code that is traced in the context behave as on a core of a TPU.

    `cross_replica_sum` is called as `(input, group_assignment, name=None)` instead of the op, which
    has no kernel outside of a TPU. Nor has the op that returns the number of the core.
    """
    number = functools.partial(_number_of, core)
    with _PATCH_LOCK, contextlib.ExitStack() as stack:
        stack.enter_context(_patched(_gen_tpu_ops, "cross_replica_sum", cross_replica_sum))
        for module, name in _NUMBERS_OF_CORES:
            stack.enter_context(_patched(module, name, number))
        stack.enter_context(tpu_shard_context(num_cores))
        yield


# An op, by the names that programs call it. On a CPU it ends the process.
_NUMBERS_OF_CORES = ((_gen_xla_ops, "xla_replica_id"), (_xla, "replica_id"))


def replica_id() -> Tensor:
    """Returns the number of the core, as programs of XLA ask for it."""
    return _xla.replica_id()


def _number_of(core: int, name: str | None = None) -> Tensor:
    return tf.constant(core, tf.int32, name=name)


_graphs_of_one_replica: weakref.WeakSet[Graph] = weakref.WeakSet()


def trace_on_one_replica(graph: Graph) -> None:
    """Makes ops of several replicas work in a graph that no TPU runs: a sum is that of one replica.

    Without it a model with a CrossShardOptimizer runs on a TPU alone, which has the kernels.
    """
    with _PATCH_LOCK:
        if not isinstance(_gen_tpu_ops.cross_replica_sum, _OrOnOneReplica):
            stock = _gen_tpu_ops.cross_replica_sum
            _gen_tpu_ops.cross_replica_sum = _OrOnOneReplica(stock, _sum_of_one)
            for module, name in _NUMBERS_OF_CORES:
                number = functools.partial(_number_of, 0)
                setattr(module, name, _OrOnOneReplica(getattr(module, name), number))
        _graphs_of_one_replica.add(graph)


class _OrOnOneReplica:
    """An op, or what stands for it in graphs of one replica and in the functions inside of them."""

    def __init__(self, op: Callable[..., Tensor], on_one: Callable[..., Tensor]) -> None:
        self._op, self._on_one = op, on_one

    def __call__(self, *args: Object, **settings: Object) -> Tensor:
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


def is_in_control_flow(op: Op) -> bool:
    """Returns whether an op of a graph is within a branch or a loop of TensorFlow 1."""
    return op._get_control_flow_context() is not None


_OPS_IN_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def is_in_python(op_type: str) -> bool:
    """Returns whether ops of a type call Python functions, which one process alone has."""
    return op_type in _OPS_IN_PYTHON


def ops_in_python(ops: Sequence[Op]) -> list[str]:
    """Returns the names of those ops of a graph that call Python, or functions that do."""
    return [op.name for op in ops if is_in_python(op.type) or _calls_python(op)]


def _calls_python(op: Op) -> bool:
    """Returns whether a function that an op has as an attribute calls Python, at any depth."""
    pending = [
        attribute
        for described in op.op_def.attr
        if described.type in ("func", "list(func)")
        for attribute in _as_list(op.get_attr(described.name))
    ]
    names = [attribute.name for attribute in pending]
    seen: set[str] = set()
    while names:
        name = names.pop()
        if name in seen or name not in op.graph._functions:
            continue
        seen.add(name)
        for node in op.graph._functions[name].cached_definition.node_def:
            if is_in_python(node.op):
                return True
            for value in node.attr.values():
                names += [each.name for each in (value.func, *value.list.func) if each.name]
            # Ops of functions that were called have their names.
            names.append(node.op)
    return False


def _as_list(value: Object) -> list[Object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def move_ops(ops: Sequence[Op], device: str, other: str) -> None:
    """Puts those ops of a graph that are on one device on another."""
    for op in ops:
        if op.device == device:
            op._set_device(other)


def tpu_computation_graph() -> Graph | None:
    """Returns the graph in which the TPU computation that is being traced began, or None.

    It differs from the default graph once control flow or a tf.function was entered since.
    """
    return _tpu_computation()[0]


def tpu_computation_context() -> Object | None:
    """Returns the TPUReplicateContext in which a TPU computation is being traced, or None.

    The software TPU traces a computation once for each core, each time in a context of its own.
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


def tpu_metadata(metadata: Object) -> contextlib.AbstractContextManager[None]:
    """Makes queries for the TPU system return `metadata`, in the context; no TPU is looked for."""
    query = "_query_tpu_system_metadata"
    return _patched(_tpu_system_metadata, query, lambda *_, **__: metadata)


def tpu_hardware(*, embedding_feature: str, sparse_cores: int = 0) -> Message:
    """Returns the proto in which a TPU describes its hardware, with the SparseCores of a core."""
    feature = _topology.TPUHardwareFeature
    return feature(
        embedding_feature=feature.EmbeddingFeature.Value(embedding_feature),
        num_embedding_devices_per_chip=sparse_cores,
    )


def embedding_hardware(strategy: Strategy) -> str | None:
    """Returns the name of a TPU's `EmbeddingFeature`, None if the TPU does not say."""
    feature = getattr(strategy.extended, "tpu_hardware_feature", None)
    if feature is None or feature.tpu_hardware_feature_proto is None:
        return None
    return str(feature.embedding_feature.value)


def sparse_cores_of(strategy: Strategy) -> int:
    """Returns how many SparseCores each core of a TPU has, 0 if the TPU does not say."""
    feature = getattr(strategy.extended, "tpu_hardware_feature", None)
    return 0 if feature is None else int(feature.num_embedding_devices_per_chip)


def sharded_variable_creator(strategy: Strategy) -> Callable[..., Variable]:
    """Returns a variable creator that gives each core of a TPUStrategy a part of the rows."""
    # TensorFlow 2.15 does not have it, and no strategy that asks for it.
    module = importlib.import_module("tensorflow.python.tpu.tpu_embedding_v3")
    return cast(Callable[..., Variable], module.make_sharded_variable_creator(strategy))


def has_ops(names: Collection[str]) -> bool:
    """Returns whether TensorFlow has all these ops; most have no kernel on a CPU."""
    return all(hasattr(tf.raw_ops, name) for name in names)


def around_sparse_core_ids(
    before: Callable[[Object], Object], after: Callable[[Tensor, Object], None]
) -> None:
    """Lets functions see how stock's TPUEmbeddingV2 reads the ids of features, from now on.

    `before` gets the ids of a feature and returns those to read; `after` gets an output of the op
    that reads them, and stock's config of the feature.
    """
    embedding, name = tf.tpu.experimental.embedding.TPUEmbeddingV2, _READ_IDS
    stock = getattr(embedding, name)

    def read(_: type, ids: Object, weights: Object, feature: Object, *rest: Object) -> Object:
        outputs = stock(before(ids), weights, feature, *rest)
        after(outputs[0][0], feature)
        return outputs

    setattr(embedding, name, classmethod(read))


def reach_sharded_variables_by_position() -> None:
    """Lets a sharded variable that is not packed be read and assigned on one device, from now on.

    Stock does so by the handle of all parts together, which finds the part by the device. Devices
    of software are one and the same; the parts are in the order of the strategy's.
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

    def assign_on_device(self: Object, device: str, value: Object) -> None:
        if self._packed_var is not None:
            assign(self, device, value)
        else:
            part(self, device).assign(value)

    variable.read_from_device, variable.assign_on_device = read_from_device, assign_on_device


_READ_IDS = "_convert_input_feature_to_list_of_coo_tensors"


def tpu_devices(strategy: Strategy) -> tuple[list[list[str]], int | None]:
    """Returns a TPUStrategy's devices, [replica][core], and the cores per replica.

    The latter is None unless the strategy was made with a device assignment: the device is told
    about model parallelism only then, even when a replica has one core.
    """
    extended = strategy.extended
    devices = getattr(extended, "_tpu_devices", None)
    if devices is None:  # A strategy that stands in for a TPU's.
        devices = [[device] for device in extended.worker_devices]
    assignment = getattr(extended, "_device_assignment", None)
    return (
        [[str(device) for device in replica] for replica in devices],
        assignment.num_cores_per_replica if assignment else None,
    )


TPUExtended = _tpu_strategy.TPUExtended
"""The class behind TPUStrategy, from which a software TPU's strategy derives."""


def tpu_replica_context(
    strategy: Strategy, replica: int
) -> contextlib.AbstractContextManager[Object]:
    """Returns the context in which `tf.distribute.get_replica_context` knows its replica."""
    return _tpu_strategy._TPUReplicaContext(strategy, replica_id_in_sync_group=replica)


def do_not_pack_variables(strategy: Strategy) -> None:
    """Keeps a strategy from packing the copies of a variable into one handle.

    Packed handles are told apart by their devices, and all software cores share one.
    """
    strategy._enable_packed_variable_in_eager_mode = False


# TPU feature columns.

sequence_length_key: Callable[[str], str]
sequence_length_key = _columns.get_sequence_length_feature_key_name_from_feature_key_name
"""Returns the key under which columns look for the lengths of a sequence feature."""

pad_ids: Callable[..., tuple[Tensor, Tensor]] = _columns_v2.pad_sparse_embedding_lookup_indices
"""Returns sparse ids, as tensor-core columns take them: padded to a length, and a mask of them."""


def mask_key(feature_key: str) -> str:
    """Returns the key under which tensor-core columns look for the mask of their ids."""
    return feature_key + str(_columns_v2._TENSOR_CORE_MASK_KEY_SUFFIX)


def column_scopes(graph: Graph) -> dict[str, tuple[str, str]]:
    """Returns the records of TPU columns in use: variable name to (scope, name).

    Clears the record, as stock does.
    """
    key = _columns._TPU_FC_TO_SCOPE
    recorded = graph.get_collection(key)
    graph.clear_collection(key)
    return dict(recorded[0]) if recorded else {}


def legacy_tpu_class(name: str) -> type | None:
    """Returns TensorFlow's own class of legacy TPU embeddings, None after 2.15.

    Stock's estimator checks the classes of what a spec holds. A module that was installed in place
    of stock's does not count.
    """
    try:
        from tensorflow.python.tpu import tpu_embedding
    except ImportError:
        return None
    legacy_class = getattr(tpu_embedding, name, None)
    home = getattr(legacy_class, "__module__", None)
    return legacy_class if home == "tensorflow.python.tpu.tpu_embedding" else None


# Replicas.

per_replica: Callable[[tuple[Object, ...]], Object] = _distribute_values.PerReplica
"""Returns one value per replica as the distributed value that strategies pass around."""

select_replica: Callable[[int, Nest], Nest] = _distribute_utils.select_replica
"""Returns a nest with the values of one replica."""

regroup: Callable[[tuple[Nest, ...]], Nest] = _distribute_utils.regroup
"""Returns one nest of distributed values for a nest per replica."""


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


# Estimators: hooks, savers, losses of replicas, exports.


@contextlib.contextmanager
def estimator_scope(strategy: Strategy) -> Iterator[None]:
    """Opens a strategy's scope in which TensorFlow 1's optimizers scale the losses of replicas."""
    with strategy.scope(), strategy._scale_loss_for_estimator_enabled():
        yield


def is_loss_scaled(graph: Graph) -> bool:
    """Returns whether an optimizer divided the loss of each replica by their number."""
    return bool(getattr(graph, "_is_loss_scaled_by_optimizer", False))


def set_global_step_read(value: Tensor) -> None:
    """Makes a tensor what hooks read as the global step in the default graph."""
    tf.compat.v1.get_collection_ref(_training_util.GLOBAL_STEP_READ_KEY)[:] = [value]


def read_global_step(graph: Graph) -> Tensor:
    """Returns the read of the global step that TensorFlow's hooks share; makes it if need be."""
    key = _training_util.GLOBAL_STEP_READ_KEY
    if tf.distribute.has_strategy() and not graph.get_collection(key):
        # By itself TensorFlow does not know how to read a mirrored one.
        step = tf.compat.v1.train.get_global_step()
        graph.add_to_collection(key, tf.distribute.get_strategy().extended.read_var(step))
    return _training_util._get_or_create_global_step_read(graph)


def add_saving_listener(hook: Object, listener: Object) -> None:
    """Adds a listener to a CheckpointSaverHook that someone else made."""
    if listener not in hook._listeners:
        hook._listeners.append(listener)


def path_of_saver(hook: Object) -> str:
    """Returns where a CheckpointSaverHook saves, without the step."""
    path: str = hook._save_path
    return path


def publish_checkpoint(path: str) -> None:
    """Makes a checkpoint the latest one of its directory, in the file that says which is."""
    directory = os.path.dirname(path)
    state = tf.train.get_checkpoint_state(directory)
    paths = [*(state.all_model_checkpoint_paths if state is not None else ()), path]
    # Of a relative directory only bare names are relative to the file.
    names = [os.path.basename(p) if os.path.dirname(p) == directory else p for p in paths]
    older = [name for name in names[:-1] if name != names[-1]]
    _checkpoint_management.update_checkpoint_state_internal(
        directory, names[-1], [*older, names[-1]], save_relative_paths=True
    )


class Cancellation:
    """Ends calls of tf.functions from another thread."""

    def __init__(self) -> None:
        self._manager = _cancellation.CancellationManager()

    def possible(self) -> contextlib.AbstractContextManager[None]:
        """Lets calls of tf.functions be ended, in the context."""
        return _cancellation.CancellationManagerContext(self._manager)

    def cancel(self) -> None:
        """Has the call that runs, and later ones, raise a CancelledError."""
        self._manager.start_cancel()


def save_as(variable: Variable, name: str) -> None:
    """Gives a variable of a graph another name in checkpoints than its op has."""
    shape = variable.shape.as_list()
    whole = tf.Variable.SaveSliceInfo(name, shape, [0] * len(shape), shape)
    variable._set_save_slice_info(whole)


_MOVED: tuple[tuple[ModuleType, str, Object], ...] = (
    (_ops, "IndexedSlices", tf.IndexedSlices),
    (_ops, "Tensor", tf.Tensor),
    (_array_ops, "stack", tf.stack),
    (_array_ops, "unstack", tf.unstack),
    (_control_flow_ops, "Assert", tf.compat.v1.Assert),
    (_control_flow_ops, "case", tf.compat.v1.case),
    (_control_flow_ops, "cond", tf.compat.v1.cond),
    (_control_flow_ops, "while_loop", tf.compat.v1.while_loop),
    (_variable_scope, "variable", tf.compat.v1.Variable),
)
"""The names in private modules that the last tf_slim, and programs of its age, look for."""


_EAGER_PROFILER = "tensorflow.python.eager.profiler"


def _eager_profiler() -> ModuleType:
    """Returns a module in the place of one that TensorFlow 2.21 has no more."""
    module = ModuleType(_EAGER_PROFILER)
    module.start_profiler_server = tf.profiler.experimental.server.start  # type: ignore[attr-defined]
    module.Profiler = tf.profiler.experimental.Profile  # type: ignore[attr-defined]
    return module


@contextlib.contextmanager
def names_of_tf1() -> Iterator[None]:
    """Provides private names that code for TensorFlow 1 uses and that have moved, in the context.

    Subclasses of batch normalization may override `_moments` without a mask, which it had not;
    TensorFlow takes layers from a path that tf_keras has left; and programs import the module of
    the profiler's server, if they use it or not.
    """
    with contextlib.ExitStack() as stack:
        for module, name, value in _MOVED:
            if not hasattr(module, name):
                setattr(module, name, value)
                stack.callback(delattr, module, name)
        old = "tf_keras.legacy_tf_layers.normalization"
        if old not in sys.modules:
            new = old.replace("tf_keras.", "tf_keras.src.")
            sys.modules[old] = importlib.import_module(new)
            stack.callback(sys.modules.pop, old)
        if _EAGER_PROFILER not in sys.modules and not importlib.util.find_spec(_EAGER_PROFILER):
            sys.modules[_EAGER_PROFILER] = _eager_profiler()
            stack.callback(sys.modules.pop, _EAGER_PROFILER)
        kinds = (tf.keras.layers.BatchNormalization, tf.compat.v1.layers.BatchNormalization)
        # The two may be of one package, or of two.
        bases = {each for kind in kinds for each in kind.__mro__ if "_moments" in vars(each)}
        for base in (each for each in bases if "__init_subclass__" not in vars(each)):
            base.__init_subclass__ = classmethod(_let_moments_do_without_mask)
            stack.callback(delattr, base, "__init_subclass__")
        yield


def _let_moments_do_without_mask(kind: type, /, **settings: Object) -> None:
    """Replaces the hook that a class calls for its subclasses."""
    moments = vars(kind).get("_moments")
    if moments is not None and "mask" not in inspect.signature(moments).parameters:

        @functools.wraps(moments)
        def without_mask(*args: Object, mask: Object = None, **kwargs: Object) -> Object:
            return moments(*args, **kwargs)

        setattr(kind, "_moments", without_mask)  # noqa: B010 - mypy knows of no such attribute


def checkpoint_key(variable: Variable) -> str:
    """Returns the name under which a Saver stores a variable, or that of which it is a part."""
    part = variable._get_save_slice_info()
    return str(part.full_name if part else variable.op.name)


def checkpoint_shape(variable: Variable) -> tuple[int, ...] | None:
    """Returns the shape of what a Saver stores under `checkpoint_key`, all parts together.

    None if it is unknown.
    """
    part = variable._get_save_slice_info()
    if part:
        return tuple(part.full_shape)
    return tuple(variable.shape) if variable.shape.is_fully_defined() else None


class RowRanges(tf.Variable.SaveSliceInfo):
    """The rows of a stored tensor that a variable holds, where they are not one block.

    Args:
        full_name, full_shape: of the stored tensor.
        ranges: the first of some consecutive rows, and their number; they are in the order in which
            the variable holds them.
    """

    def __init__(
        self, full_name: str, full_shape: Sequence[int], ranges: Sequence[tuple[int, int]]
    ) -> None:
        rows = [sum(count for _, count in ranges), *full_shape[1:]]
        super().__init__(full_name, list(full_shape), [0] * len(rows), rows)
        self.ranges = tuple(ranges)

    @property
    def spec(self) -> str:
        """Not to be had: a Saver of TensorFlow stores a variable as one block of rows."""
        raise errors.InvalidInput(
            f"{self.full_name!r}: parameter servers hold its rows in octaves, which only the "
            "Saver of the estimator stores, and only a restored checkpoint fills. Leave out the "
            'program\'s own Saver and `warm_start_from`, or use the layout "div".'
        )


def set_row_ranges(variable: Variable, ranges: RowRanges) -> None:
    """Sets which rows of a stored tensor a variable of a graph holds."""
    variable._set_save_slice_info(ranges)


def row_ranges(variable: Object) -> tuple[tuple[int, int], ...] | None:
    """Returns the rows of a stored tensor that a variable holds: the first, and their number.

    None if it is no resource variable of numbers whose shape is known, or no blocks of rows.
    """
    if not isinstance(variable, _resource_variable_ops.BaseResourceVariable):
        return None
    has_numbers = variable.dtype.is_floating or variable.dtype.is_integer
    if not has_numbers or not variable.shape.rank or not variable.shape.is_fully_defined():
        return None
    part = variable._get_save_slice_info()
    if part is None:
        return ((0, int(variable.shape[0])),)
    if isinstance(part, RowRanges):
        return part.ranges
    has_rows = list(part.var_shape[1:]) == list(part.full_shape[1:])
    return ((int(part.var_offset[0]), int(part.var_shape[0])),) if has_rows else None


class VariableInSlices(_saveable_object.SaveableObject):
    """A resource variable that a Saver stores as several slices of rows of one tensor.

    Needs `SaverBuilderOfSlices`, which restores slice after slice into the variable: what that
    takes beside the variable is the size of a slice, and not of the variable.

    Args:
        variable: a variable with `row_ranges`.
        slices: the first row of each in the stored tensor, and their number. They are in the order
            in which the variable holds them. A slice is stored without a copy where the bytes of
            the rows before it, and its own, are multiples of 64.
    """

    def __init__(self, variable: Variable, slices: Sequence[tuple[int, int]]) -> None:
        self._variable = variable
        key, shape = checkpoint_key(variable), checkpoint_shape(variable)
        assert shape is not None  # as of all that have ranges of rows
        offsets, rows = [0] * (len(shape) - 1), list(shape[1:])
        self._edges = list(itertools.accumulate((count for _, count in slices), initial=0))
        specs = [
            _saveable_object.SaveSpec(
                functools.partial(self._read, number),
                tf.Variable.SaveSliceInfo(key, list(shape), [first, *offsets], [count, *rows]).spec,
                key,
                dtype=variable.dtype.base_dtype,
                device=variable.device,
            )
            for number, (first, count) in enumerate(slices)
        ]
        super().__init__(variable, specs, variable.op.name)

    @functools.cached_property
    def _value(self) -> Tensor:
        # A variable whose rows were looked up is copied when it is read, unless this op runs first.
        # (That of `read_value_no_copy` is no part of a step in a graph.)
        handle, dtype = self._variable.handle, self._variable.dtype.base_dtype
        with tf.control_dependencies([tf.raw_ops.DisableCopyOnRead(resource=handle)]):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

    def _read(self, number: int) -> Tensor:
        begin, end = self._edges[number : number + 2]
        rest = self._variable.shape.rank - 1
        with tf.device(self._variable.device):
            return tf.slice(self._value, [begin, *[0] * rest], [end - begin, *[-1] * rest])

    def restore(self, restored_tensors: Sequence[Object], restored_shapes: Object) -> Op:
        """Returns the op that restores the last slice, after all others."""
        order: _OneByOne = restored_tensors[0]
        handle, dtype = self._variable.handle, self._variable.dtype.base_dtype
        with tf.device(self._variable.device):
            with tf.control_dependencies(order.before):
                # A value that is restored over is dropped before another one fills memory.
                empty = tf.raw_ops.Empty(shape=self._variable.shape.as_list(), dtype=dtype)
                order.before = [tf.raw_ops.AssignVariableOp(resource=handle, value=empty)]
            edges = tf.constant(self._edges, tf.int64)
            specs = tf.constant([spec.slice_spec for spec in self.specs])

            def restore_slice(number: Tensor) -> Tensor:
                (rows,) = tf.raw_ops.RestoreV2(
                    prefix=order.file,
                    tensor_names=[self.specs[0].name],
                    shape_and_slices=specs[number : number + 1],
                    dtypes=[dtype],
                )
                written = tf.raw_ops.ResourceStridedSliceAssign(
                    ref=handle,
                    begin=edges[number : number + 1],
                    end=edges[number + 1 : number + 2],
                    strides=tf.ones([1], tf.int64),
                    value=rows,
                )
                with tf.control_dependencies([written]):
                    return number + 1

            with tf.control_dependencies(order.before):
                # A loop: ops for each slice of a large table would fill the memory of the chief.
                done = tf.while_loop(
                    lambda number: number < len(self.specs),
                    restore_slice,
                    [tf.constant(0)],
                    parallel_iterations=1,
                )
            order.before = [done[0].op]
        return order.before[0]


class _OneByOne:
    """The slices that a device restores: the file, and the ops that the next slice waits for."""

    def __init__(self, file: Tensor) -> None:
        self.file = file
        self.before: list[Op] = []


class SaverBuilderOfSlices(_saver.BulkSaverBuilder):
    """Builds a Saver that restores a `VariableInSlices` slice after slice, one on a device."""

    def bulk_restore(
        self,
        filename_tensor: Tensor,
        saveables: Sequence[Object],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> list[Object]:
        """Returns an entry for each spec: a tensor, or what slices are restored by."""
        others = [each for each in saveables if not isinstance(each, VariableInSlices)]
        arguments = filename_tensor, others, preferred_shard, restore_sequentially
        tensors = iter(super().bulk_restore(*arguments) if others else ())
        order = _OneByOne(filename_tensor)
        return [
            order if isinstance(each, VariableInSlices) else next(tensors)
            for each in saveables
            for _ in each.specs
        ]


def iterator_saveable(resource: Tensor, external_state_policy: str) -> Object:
    """Returns the object by which a Saver saves an iterator; the public one takes iterators only.

    The resource is an element of the collection "iterators", and the policy "fail", "warn" or
    "ignore".
    """
    policy = tf.data.experimental.ExternalStatePolicy[external_state_policy.upper()]
    return _iterator_ops._IteratorSaveable(resource, resource.name, policy)


summary_writer_initializers: Callable[[], list[Op]] = _summary_ops.summary_writer_initializer_op
"""Returns the ops that create the summary writers of the default graph."""

export_outputs: Callable[[Object, Nest], dict[str, Object]] = _export_utils.get_export_outputs
"""Returns a model's export outputs, checked, with a default one made of its predictions."""


def export_output_classes() -> dict[str, type]:
    """Returns the classes that `export_outputs` takes, by name; they have no public one."""
    names = ("ExportOutput", "ClassificationOutput", "RegressionOutput", "PredictOutput")
    return {name: getattr(_export_output, name) for name in (*names, "EvalOutput")}


def signature_defs(mode: str, spec: Object, receiver: Object) -> dict[str, Message]:
    """Returns the signatures of an exported graph, by name, as stock's estimators make them.

    The mode is "train", "eval" or "infer", the spec the EstimatorSpec of the graph, and the
    receiver has `receiver_tensors`, and `receiver_tensors_alternatives` if it likes.
    """
    outputs = _export_utils.export_outputs_for_mode(
        mode=mode,
        serving_export_outputs=spec.export_outputs,
        predictions=spec.predictions,
        loss=spec.loss,
        metrics=spec.eval_metric_ops,
    )
    signatures = _export_utils.build_all_signature_defs(
        receiver.receiver_tensors,
        outputs,
        getattr(receiver, "receiver_tensors_alternatives", None),
        serving_only=mode == "infer",
    )
    return dict(signatures)


# Variables and checkpoints.


def saver_of_graph(saver: Object) -> Object:
    """Returns a Saver in place of a `tf.train.Checkpoint`, which SavedModel builders do not take.

    It has the Checkpoint's keys; anything else is returned as it is.
    """
    if not isinstance(saver, (tf.train.Checkpoint, tf.compat.v1.train.Checkpoint)):
        return saver
    objects = _graph_view.ObjectGraphView(saver).frozen_saveable_objects()
    return tf.compat.v1.train.Saver(objects, sharded=True)


def in_saved_model_export() -> bool:
    """Returns whether a function is traced for a SavedModel, which holds no queues or drivers."""
    return not tf.executing_eagerly() and bool(_save_context.in_save_context())


def saved_model_export() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which functions are traced for a SavedModel."""
    context: contextlib.AbstractContextManager[None] = _save_context.save_context(
        tf.saved_model.SaveOptions()
    )
    return context


def plain_variable(**arguments: Object) -> Variable:
    """Makes one resource variable, whatever strategy is in scope.

    Under MirroredStrategy `tf.Variable` makes a copy per replica; a table is one. It belongs to the
    strategy all the same, which Keras optimizers ask for.
    """
    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    return _resource_variable_ops.ResourceVariable(distribute_strategy=strategy, **arguments)


# What stock's sharded tables are made of; the public class is a composite tensor.
class ShardedTable(_sharded_variable.ShardedVariableMixin):
    """The shards of a table, each with consecutive rows, as one variable of [rows, dim].

    As stock's, it reads, assigns and saves as one, and has as much of a variable as it takes to
    hand it to a Keras optimizer, which then makes slots for it.
    """

    name: str
    dtype: DType
    variables: list[Variable]

    @property
    def _in_graph_mode(self) -> bool:
        return bool(self.variables[0]._in_graph_mode)

    def __tf_tensor__(self, dtype: DType | None = None, name: str | None = None) -> Tensor:
        if dtype is not None and not dtype.is_compatible_with(self.dtype):
            raise ValueError(f"{self.name} is {self.dtype.name}, and cannot be read as {dtype}.")
        return tf.concat([shard.read_value() for shard in self.variables], 0, name or "read")


class SavedTensor(tf.__internal__.tracking.AutoTrackable):
    """An object that a checkpoint holds as one float32 variable.

    Subclasses override `slices`, `restore` and `snapshot`.
    """

    _self_setattr_tracking = False  # its attributes are no part of the checkpoint

    def slices(self) -> Sequence[Object]:
        """Returns the parts to write and to read, each with three attributes.

        `spec`, which part it is, as `tf.Variable.SaveSliceInfo.spec` writes it ("" is the whole);
        `read`, a function that returns its value when it is about to be written; `device`, where
        the value is.
        """
        raise NotImplementedError

    def restore(self, values: list[Tensor]) -> Op:
        """Takes over the values of the parts; returns an op in a graph."""
        raise NotImplementedError

    def snapshot(self, old: SavedTensor | None) -> SavedTensor:
        """Returns a copy that later steps leave alone; `old`, if not None, is brought up to date.

        An asynchronous checkpoint is written from such a copy.
        """
        raise NotImplementedError

    # Not the newer `_serialize_to_tensors`: its restore hands over the first of several slices
    # only (TrackableSaveable.restore in saveable_object_util.py, 2.15 and 2.21).
    def _gather_saveables_for_checkpoint(self) -> dict[str, Callable[..., Object]]:
        return {"VARIABLE_VALUE": lambda name="": _SaveableOfSlices(self, name)}

    def _copy_trackable_to_cpu(self, object_map: Object) -> None:
        object_map[self] = self.snapshot(object_map.get(self))


class _SaveableOfSlices(_saveable_object.SaveableObject):
    def __init__(self, owner: SavedTensor, name: str) -> None:
        self._owner = owner
        specs = [
            _saveable_object.SaveSpec(
                part.read, part.spec, name, dtype=tf.float32, device=part.device
            )
            for part in owner.slices()
        ]
        super().__init__(owner, specs, name)

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: Object) -> Op:
        return self._owner.restore(list(restored_tensors))


class CheckpointedEmbedding(tf.tpu.experimental.embedding.TPUEmbedding):
    """An object that checkpoints take for stock's TPUEmbedding; it shares nothing else with it.

    What TensorFlow runs before a TPUEmbedding is saved and after it is restored belongs to a saver
    that is registered for instances of the class, and a checkpoint names that saver. Without the
    name, a stock engine that is built already would restore its variables and leave the rows on
    its TPU as they were; with a name of our own, stock could not restore at all. Hence a subclass,
    whose base is never constructed.
    """

    _self_setattr_tracking = False  # what is tracked is named in `_track`
    # Read where an asynchronous checkpoint makes the copy below.
    _feature_config: Nest = None
    _table_config: Sequence[Object] = ()
    _pipeline_execution_with_tensor_core = False

    exported_instead: Mapping[str, Variable] | None = None
    """The variables that a SavedModel holds in place of the tables, for as long as it is set."""

    def _before_save(self) -> Op:
        """Runs before the variables are written; there may be nothing to do."""

    def _after_restore(self) -> Op:
        """Runs after the variables were restored; there may be nothing to do."""

    def _exported(self) -> dict[str, Variable]:
        """Returns the variables that a SavedModel holds."""
        raise NotImplementedError

    def _track(self, name: str, child: Object) -> None:
        """Makes `child` part of checkpoints; a restore that came before it reaches it now."""
        self._track_trackable(child, name, overwrite=True)

    def _retrieve_variables(self) -> None:
        if not in_saved_model_export():
            self._before_save()

    # An asynchronous checkpoint retrieves after it has copied the variables, which is too late for
    # variables; but it comes to the engine before it comes to the tables.
    def _copy_trackable_to_cpu(self, object_map: Object) -> None:
        self._before_save()

    def _load_variables(self) -> None:
        if not in_saved_model_export():
            self._after_restore()

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Object
    ) -> dict[str, Object]:
        if save_type == "savedmodel":
            return self._exported() if self.exported_instead is None else {**self.exported_instead}
        return dict(super()._trackable_children(save_type, **kwargs))

    def _create_copy_for_async_checkpoint(self, **_: Object) -> Object:
        # Stands for an engine while copies of its tables are written: nothing is to be run then.
        return CheckpointedEmbedding.__new__(CheckpointedEmbedding)


# Gradient tapes and Keras.


could_record: Callable[[], bool] = _record.could_possibly_record
"""Returns whether a `tf.GradientTape` is open in this thread, which could ask for gradients."""


def in_keras_construction() -> bool:
    """Returns whether Keras calls a layer with placeholders, to learn the shapes it returns."""
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and "scratch_graph" in str(getattr(graph, "name", ""))


def keras_learning_rate(optimizer: Object) -> Object:
    """Returns the learning rate that a Keras optimizer was made with: a schedule, or a value.

    With a schedule, `learning_rate` of Keras 2's newer optimizers is the rate of the step before.
    """
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if callable(rate) else optimizer.learning_rate


def start_keras_optimizer(
    optimizer: Object, start: Callable[..., None], learning_rate: Object, name: str
) -> None:
    """Calls the constructor that an optimizer has of its Keras.

    Args:
        start: that constructor.
        learning_rate: a number or a schedule.
    """
    if hasattr(optimizer, "_build_learning_rate"):  # Keras 2
        start(name=name, jit_compile=False)
        optimizer._learning_rate = optimizer._build_learning_rate(learning_rate)
    else:
        start(learning_rate=learning_rate, name=name)


def keras_variable_index(optimizer: Object, variable: Object) -> int:
    """Returns which of the variables that a Keras optimizer was built for a variable is."""
    if hasattr(optimizer, "_get_variable_index"):
        return int(optimizer._get_variable_index(variable))
    return int(optimizer._index_dict[optimizer._var_key(variable)])  # Keras 2


@functools.cache
def initializers() -> dict[str, type]:
    """Returns TensorFlow's own initializers, those of both generations, by "v1." or "v2." name."""
    return {
        f"{generation}.{name}": kind
        for generation, module in (("v1", _init_ops), ("v2", _init_ops_v2))
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, module.Initializer)
        # Names of classes alone: the module has aliases of some.
        if kind.__name__ == name
    }


def count_evaluation_step() -> Op:
    """Returns the op that counts the steps of an evaluation, where hooks look for them."""
    step = _evaluation._get_or_create_eval_step()
    return tf.compat.v1.assign_add(step, 1, use_locking=True)


def remember_keras_names(graph: Graph) -> Callable[[], None]:
    """Returns a function that sets the counters by which Keras names layers back to what they are.

    A model that is traced once per core in one graph must get the same names each time.
    """

    def counters() -> dict[str, dict[str, int]]:
        """Returns those of the unnamed layers of the graph, by the module of a Keras."""
        per_graph = {
            name: getattr(sys.modules.get(name), "PER_GRAPH_OBJECT_NAME_UIDS", {})
            for name in ("keras.src.backend", "tf_keras.src.backend")
        }
        return {name: graphs[graph] for name, graphs in per_graph.items() if graph in graphs}

    saved = {name: dict(counter) for name, counter in counters().items()}

    def restore() -> None:
        for name, counter in counters().items():
            counter.clear()
            counter.update(saved.get(name, {}))

    return restore


# Keras 2 models as estimators.


def flat_layers(model: Object) -> list[Object]:
    """Returns the layers of a Keras model or layer, those in layers and itself included."""
    return list(model._flatten_layers())


def is_graph_network(model: Object) -> bool:
    """Returns whether a Keras model is a graph of layers: not a program's own subclass."""
    return bool(model._is_graph_network)


def has_keras_weights(model: Object) -> bool:
    """Returns whether the weights of a Keras model have values; in a TF 1 graph they may not."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return True
    weights = itertools.chain.from_iterable(layer.weights for layer in model.layers)
    return any(hasattr(weight, "_keras_initialized") for weight in weights)


def weigh_losses(model: Object, weights: Sequence[Tensor | None]) -> None:
    """Gives a compiled Keras model of a graph the weights of its examples, one for each output."""
    model._compile_weights_loss_and_weighted_metrics(weights)


def keras_train_op(model: Object, is_training: bool) -> Op | None:
    """Adds the losses of a compiled Keras model to its graph; returns its train op in training."""
    if not is_training:
        model._make_test_function()
        return None
    model._make_train_function()
    return model.train_function.updates_op


def compiled_metrics(model: Object) -> list[Object] | None:
    """Returns the metrics that a Keras model was compiled with; None without any."""
    if not getattr(model, "_compile_metrics", None):
        return None
    return list(model._compile_metric_functions)


def restore_reset_model(model: Object, clone: Object) -> None:
    """Gives a program's own Keras model its layers back, if making its clone took them."""
    reset = getattr(model, "_original_attributes_cache", None) is not None
    if reset and not is_graph_network(clone):
        keras2().__internal__.models.in_place_subclassed_model_state_restoration(model)


def track(model: Object, name: str, value: Object) -> None:
    """Makes a value a part of what checkpoints of a Keras model hold."""
    model._track_trackable(value, name)


def saver_by_object(root: Object) -> Object:
    """Returns a Saver whose checkpoints have the keys that `tf.train.Checkpoint` has for an object.

    It restores checkpoints with the names of variables too.
    """
    objects = _graph_view.ObjectGraphView(root).frozen_saveable_objects()
    saver = tf.compat.v1.train.Saver(objects, sharded=True)
    saver._object_restore_saver = _checkpoint.frozen_saver(root)
    return saver


# Canned estimators: Keras 2, and feature columns of either generation.


def keras2() -> Object:
    """Returns the module of Keras 2: `tf.keras` on TensorFlow 2.15, `tf_keras` later."""
    if tf.__version__.startswith("2.15."):
        return tf.keras
    import tf_keras

    return tf_keras


def keras2_v1() -> Object:
    """Returns Keras 2 as `tf.compat.v1.keras` has it, whatever `tf.keras` is."""
    if tf.__version__.startswith("2.15."):
        return tf.compat.v1.keras
    from tf_keras.api._v1 import keras

    return keras


def v1_layers() -> Object:
    """Returns the module with the layers of `tf.compat.v1.layers`, which Keras 3 refuses."""
    return keras2_v1().__internal__.legacy.layers


broadcast_weights: Callable[[TensorLike, Tensor], Tensor] = tf.__internal__.ops.broadcast_weights
"""Returns weights in the shape of the values that they belong to."""

is_new_column: Callable[[Sequence[Object]], bool] = _feature_column_v2.is_feature_column_v2
"""Returns whether columns are of `tf.feature_column`, not of TensorFlow 1's private classes."""

sorted_columns: Callable[[Sequence[Object]], list[Object]]
sorted_columns = _feature_column_v2._normalize_feature_columns
"""Returns feature columns checked and in the order of their names."""

column_scope_name: Callable[[str], str]
column_scope_name = _feature_column_v2._sanitize_column_name_for_variable_scope
"""Returns the name of a feature column as a variable scope can have it."""

check_batch_sizes: Callable[[Sequence[Tensor], Sequence[Object]], None]
check_batch_sizes = _feature_column_v2._verify_static_batch_size_equality
"""Raises ValueError if tensors of feature columns differ in their batch size."""

FeatureCache = tf.__internal__.feature_column.FeatureTransformationCache
"""Features by column, each transformed once."""

ColumnState = tf.__internal__.feature_column.StateManager
"""The variables of the feature columns of a Keras layer."""

DenseColumn = tf.__internal__.feature_column.DenseColumn
CategoricalColumn = _feature_column_v2.CategoricalColumn

V1InputLayer = _feature_column.InputLayer
"""The layer of `tf.compat.v1.feature_column.input_layer`."""

V1LinearModel = _feature_column._LinearModel
"""The Keras model of `tf.compat.v1.feature_column.linear_model`."""

with_context: Callable[[Tensor, Tensor], Tensor] = _sequence_column.concatenate_context_input
"""Returns sequences with the values of their context added to every step."""


def clustering() -> Object:
    """Returns the module of TensorFlow with the ops of k-means clustering."""
    return _clustering_ops


def weighted_sum(**arguments: Object) -> Tensor:
    """Returns the sum of a column's weights over the values of each example, [batch, units].

    Takes `column`, `transformation_cache`, `state_manager`, `sparse_combiner` and `weight_var`.
    """
    return _feature_column_v2._create_weighted_sum(**arguments)


def is_dense_column(column: Object, *, numeric: bool = False) -> bool:
    """Returns whether an object is a dense feature column, or a numeric one, of either kind."""
    if numeric:
        kinds = (_feature_column_v2.NumericColumn, _feature_column._NumericColumn)
    else:
        kinds = (DenseColumn, _feature_column._DenseColumn)
    return isinstance(column, kinds)


def dense_values(column: Object, features: dict[str, Object]) -> Tensor:
    """Returns the values of a dense feature column of either kind, eagerly or in a graph."""
    return column._get_dense_tensor(_feature_column._LazyBuilder(features))


def variable_scope_only(name: str) -> contextlib.AbstractContextManager[Object]:
    """Opens a variable scope without the name scope that belongs to it."""
    return _variable_scope._pure_variable_scope(name)


def name_scope_now() -> str:
    """Returns the name scope that is open, without a slash at its end."""
    return str(tf.__internal__.get_name_scope())
