"""The seam: every private or version-dependent name of TensorFlow that the project uses.

Nothing else in the project imports `tensorflow.python`, `tensorflow.core` or keras internals.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

# What checkpoints are made of: the entries of an index, and the graph of their objects.
from tensorflow.core.protobuf import tensor_bundle_pb2 as _bundle
from tensorflow.core.protobuf import trackable_object_graph_pb2 as _objects

# The config proto and its enums have no public name.
from tensorflow.core.protobuf.tpu import optimization_parameters_pb2 as _optimization
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2 as _configuration

# What stock's sharded tables are made of; there is no public class that is not a composite tensor.
from tensorflow.python.distribute import sharded_variable as _sharded_variable

# How ops of random numbers come to their seeds.
from tensorflow.python.framework import random_seed as _random_seed

# Stock's TPU feature columns and CrossShardOptimizer ask these modules whether they are inside a
# TPU computation, and over how many cores.
from tensorflow.python.ops import gen_tpu_ops as _gen_tpu_ops
from tensorflow.python.tpu import feature_column as _tpu_feature_column
from tensorflow.python.tpu import tpu_function as _tpu_function

# What stock tells initializers of sharded tables; users' functions may name the class.
from tensorflow.python.trackable import base as _trackable_base
from tensorflow.python.training import training_util as _training_util

TESTED = ("2.15", "2.21")
if ".".join(tf.__version__.split(".")[:2]) not in TESTED:
    logging.getLogger(__name__).warning(
        "TensorFlow %s: this project is tested with %s; others should work, but check the results.",
        tf.__version__,
        " and ".join(TESTED),
    )

TPUEmbeddingConfiguration = _configuration.TPUEmbeddingConfiguration
OptimizationParameters = _optimization.OptimizationParameters
GradientAccumulationStatus = _optimization.GradientAccumulationStatus
HotIdReplicationConfiguration = _optimization.HotIdReplicationConfiguration
LowDimensionalPackingStatus = _optimization.LowDimensionalPackingStatus
ShardInfo = _trackable_base.ShardInfo
BundleHeader = _bundle.BundleHeaderProto
BundleEntry = _bundle.BundleEntryProto
TrackableObjectGraph = _objects.TrackableObjectGraph


@contextlib.contextmanager
def numbered_seeds(first: int = 0) -> Iterator[None]:
    """While it is open, ops of random numbers that are given no seed get numbers, from `first` on.

    TensorFlow would take the number of ops that the graph has so far. Initial values have numbers
    of their own: a function that makes variables is traced once more without making them.
    """
    stock = _random_seed.get_seed
    numbers, of_variables = itertools.count(first), itertools.count(first)
    making: list[bool] = []

    def get_seed(op_seed: Any) -> Any:
        return stock(next(of_variables if making else numbers) if op_seed is None else op_seed)

    def make(next_creator: Any, **settings: Any) -> Any:
        making.append(True)
        try:
            return next_creator(**settings)
        finally:
            making.pop()

    _random_seed.get_seed = get_seed
    try:
        with tf.variable_creator_scope(make):
            yield
    finally:
        _random_seed.get_seed = stock


def sequence_length_key(feature_key: str) -> str:
    """Returns the key under which columns look for the lengths of a sequence feature."""
    from tensorflow.python.tpu import feature_column

    return feature_column.get_sequence_length_feature_key_name_from_feature_key_name(feature_key)


def pad_ids(ids: tf.SparseTensor, padded_length: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns ids as tensor-core columns take them: padded, with a mask, [batch, length] both."""
    from tensorflow.python.tpu import feature_column_v2

    return feature_column_v2.pad_sparse_embedding_lookup_indices(ids, padded_length)


def mask_key(feature_key: str) -> str:
    """Returns the key under which tensor-core columns look for the mask of their ids."""
    from tensorflow.python.tpu import feature_column_v2

    return feature_key + feature_column_v2._TENSOR_CORE_MASK_KEY_SUFFIX


def legacy_tpu_class(name: str) -> type | None:
    """Returns TensorFlow's own class of legacy TPU embeddings, None after 2.15.

    Its estimator takes a spec apart by the classes of what is in it. What stands in for the module
    is not meant.
    """
    try:
        from tensorflow.python.tpu import tpu_embedding
    except ImportError:
        return None
    kind = getattr(tpu_embedding, name, None)
    ours = getattr(kind, "__module__", None) != "tensorflow.python.tpu.tpu_embedding"
    return None if ours else kind


_PATCH_LOCK = threading.RLock()


@contextlib.contextmanager
def tpu_computation(num_cores: int, cross_replica_sum: Callable[..., Any]) -> Iterator[None]:
    """While it is open, the code that is traced takes itself for a core of a TPU.

    Args:
        num_cores: what the shard context says.
        cross_replica_sum: called as `(input, group_assignment, name=None)` instead of the op, which
            has no kernel outside of a TPU.
    """
    with _PATCH_LOCK:
        stock = _gen_tpu_ops.cross_replica_sum
        _gen_tpu_ops.cross_replica_sum = cross_replica_sum
        try:
            with _tpu_function.tpu_shard_context(num_cores):
                yield
        finally:
            _gen_tpu_ops.cross_replica_sum = stock


def column_scopes(graph: tf.Graph) -> dict[str, tuple[str, str]]:
    """Returns what TPU columns recorded while they were used: variable name to (scope, name).

    Clears the record, as stock does.
    """
    key = _tpu_feature_column._TPU_FC_TO_SCOPE
    recorded = graph.get_collection(key)
    graph.clear_collection(key)
    return dict(recorded[0]) if recorded else {}


def rewire(stand_in: tf.Tensor, source: tf.Tensor) -> None:
    """Makes `source` the input of the Identity op that made `stand_in`, before any session runs.

    Tensors that are only known after a model has been traced can so be given to it beforehand.
    """
    stand_in.op._update_input(0, source)


def stop_waiting(ops: Sequence[Any], awaited: Collection[Any]) -> None:
    """Takes `awaited` from what ops wait for, before any session runs."""
    for op in ops:
        before = op.control_inputs
        kept = [other for other in before if other not in awaited]
        if len(kept) < len(before):
            op._remove_all_control_inputs()
            op._add_control_inputs(kept)


def read_global_step(graph: tf.Graph) -> Any:
    """Returns the read of the global step that TensorFlow's hooks share, made if need be."""
    if tf.distribute.has_strategy() and not graph.get_collection(
        _training_util.GLOBAL_STEP_READ_KEY
    ):
        # By itself TensorFlow does not know how to read a mirrored one.
        step = tf.compat.v1.train.get_global_step()
        read = tf.distribute.get_strategy().extended.read_var(step)
        graph.add_to_collection(_training_util.GLOBAL_STEP_READ_KEY, read)
    return _training_util._get_or_create_global_step_read(graph)


@contextlib.contextmanager
def estimator_scope(strategy: Any) -> Iterator[None]:
    """Opens a strategy's scope in which TensorFlow 1's optimizers scale the losses of replicas."""
    with strategy.scope(), strategy._scale_loss_for_estimator_enabled():
        yield


def is_loss_scaled(graph: tf.Graph) -> bool:
    """Whether an optimizer divided the loss of each replica by their number."""
    return bool(getattr(graph, "_is_loss_scaled_by_optimizer", False))


def call_for_each_replica(
    strategy: Any, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
) -> Any:
    """Calls a function in the context of each replica, with the arguments of that replica."""
    values = tuple(per_replica(own) for own in zip(*arguments, strict=True))
    return strategy.extended.call_for_each_replica(
        tf.autograph.experimental.do_not_convert(function), args=values
    )


def save_as(variable: Any, name: str) -> None:
    """Gives a variable of a graph another name in checkpoints than its op has."""
    shape = variable.shape.as_list()
    whole = tf.Variable.SaveSliceInfo(name, shape, [0] * len(shape), shape)
    variable._set_save_slice_info(whole)


def add_saving_listener(hook: Any, listener: Any) -> None:
    """Adds a listener to a CheckpointSaverHook that someone else made."""
    if listener not in hook._listeners:
        hook._listeners.append(listener)


def checkpoint_key(variable: tf.Variable) -> str:
    """Returns the name under which a Saver stores a variable, or that of which it is a part."""
    part = variable._get_save_slice_info()
    return str(part.full_name if part else variable.op.name)


def iterator_saveable(resource: tf.Tensor, external_state_policy: str) -> Any:
    """Returns what a Saver saves of an iterator; the public function takes iterators only.

    Args:
        resource: an element of the collection "iterators".
        external_state_policy: "fail", "warn" or "ignore".
    """
    from tensorflow.python.data.ops import iterator_ops

    policy = tf.data.experimental.ExternalStatePolicy[external_state_policy.upper()]
    return iterator_ops._IteratorSaveable(resource, resource.name, policy)


class KerasNames:
    """The counters from which Keras names unnamed layers of a graph.

    A model that is traced once per core in one graph must get the same names each time.
    """

    _MODULES = ("keras.src.backend", "tf_keras.src.backend")

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._saved = {name: dict(counters) for name, counters in self._counters()}

    def restore(self) -> None:
        """Sets the counters back to where they were when this object was made."""
        for name, counters in self._counters():
            counters.clear()
            counters.update(self._saved.get(name, {}))

    def _counters(self) -> Iterator[tuple[str, Any]]:
        for name in self._MODULES:
            per_graph = getattr(sys.modules.get(name), "PER_GRAPH_OBJECT_NAME_UIDS", {})
            if self._graph in per_graph:
                yield name, per_graph[self._graph]


@contextlib.contextmanager
def tpu_metadata(metadata: Any) -> Iterator[None]:
    """While it is open, whoever asks what TPU there is gets this answer; none is looked for."""
    from tensorflow.python.tpu import tpu_system_metadata

    with _PATCH_LOCK:
        stock = tpu_system_metadata._query_tpu_system_metadata
        tpu_system_metadata._query_tpu_system_metadata = lambda *_, **__: metadata
    try:
        yield
    finally:
        with _PATCH_LOCK:
            tpu_system_metadata._query_tpu_system_metadata = stock


def tpu_hardware(*, embedding_feature: str) -> Any:
    """Returns what a TPU says of its hardware, as a proto."""
    from tensorflow.core.protobuf.tpu import topology_pb2

    kind = topology_pb2.TPUHardwareFeature
    return kind(embedding_feature=kind.EmbeddingFeature.Value(embedding_feature))


def num_kernels(op_name: str) -> int:
    """Returns how many kernels an op has in this process, for any kind of device."""
    from tensorflow.python.framework import kernels

    return len(kernels.get_registered_kernels_for_op(op_name).kernel)


def tpu_extended() -> Any:
    """Returns the class behind TPUStrategy, from which a software TPU's strategy derives."""
    from tensorflow.python.distribute import tpu_strategy

    return tpu_strategy.TPUExtended


def tpu_replicate_context() -> Any:
    """Returns the class by which code that is traced knows that it is inside a TPU computation."""
    from tensorflow.python.tpu import tpu_replication

    return tpu_replication.TPUReplicateContext


def tpu_replica_context(strategy: Any, replica: int) -> Any:
    """Returns the context in which `tf.distribute.get_replica_context` knows its replica."""
    from tensorflow.python.distribute import tpu_strategy

    return tpu_strategy._TPUReplicaContext(strategy, replica_id_in_sync_group=replica)


def select_replica(replica: int, values: Any) -> Any:
    """Returns a nest with the values of one replica."""
    from tensorflow.python.distribute import distribute_utils

    return distribute_utils.select_replica(replica, values)


def regroup(values: tuple[Any, ...]) -> Any:
    """Returns one nest of distributed values for a nest per replica."""
    from tensorflow.python.distribute import distribute_utils

    return distribute_utils.regroup(values)


def tpu_shard_context(num_cores: int) -> contextlib.AbstractContextManager[Any]:
    """Says to the code that is traced over how many cores it runs, without any patch."""
    return _tpu_function.tpu_shard_context(num_cores)


def in_tpu_shard_context() -> bool:
    """Returns whether the code that is traced was told over how many cores it runs."""
    return _tpu_function.get_tpu_context().number_of_shards is not None


def do_not_pack_variables(strategy: Any) -> None:
    """Keeps a strategy from packing the copies of a variable into one handle.

    Packed handles are told apart by their devices, and all software cores share one.
    """
    strategy._enable_packed_variable_in_eager_mode = False


def set_core_attributes(op: tf.Operation, attributes: dict[str, int | str]) -> None:
    """Puts attributes on an op that its definition does not know; kernels can read them."""
    for name, value in attributes.items():
        kind = tf.compat.v1.AttrValue
        op._set_attr(name, kind(i=value) if isinstance(value, int) else kind(s=value.encode()))


def mark_as_argument(op: tf.Operation) -> None:
    """Marks an op as stock marks what brings the arguments of a TPU computation."""
    op._set_attr("_tpu_input_identity", tf.compat.v1.AttrValue(b=True))


def run_after(op: tf.Operation, before: tf.Operation) -> None:
    """Makes an op wait for another one of its graph."""
    op._add_control_input(before)


def export_outputs(given: Any, predictions: Any) -> dict[str, Any]:
    """Returns a model's export outputs, checked, with a default one made of its predictions."""
    from tensorflow.python.saved_model.model_utils import export_utils

    return export_utils.get_export_outputs(given, predictions)


def export_output_classes() -> dict[str, type]:
    """Returns the classes that `export_outputs` takes, by name; they have no public one."""
    from tensorflow.python.saved_model.model_utils import export_output

    names = ("ExportOutput", "ClassificationOutput", "RegressionOutput", "PredictOutput")
    return {name: getattr(export_output, name) for name in (*names, "EvalOutput")}


def signature_defs(mode: str, spec: Any, receiver: Any) -> dict[str, Any]:
    """Returns the signatures of an exported graph, by name, as stock's estimators make them.

    Args:
        mode: "train", "eval" or "infer".
        spec: the EstimatorSpec of the graph.
        receiver: has `receiver_tensors`, and `receiver_tensors_alternatives` if it likes.
    """
    from tensorflow.python.saved_model.model_utils import export_utils

    outputs = export_utils.export_outputs_for_mode(
        mode=mode,
        serving_export_outputs=spec.export_outputs,
        predictions=spec.predictions,
        loss=spec.loss,
        metrics=spec.eval_metric_ops,
    )
    made = export_utils.build_all_signature_defs(
        receiver.receiver_tensors,
        outputs,
        getattr(receiver, "receiver_tensors_alternatives", None),
        serving_only=mode == "infer",
    )
    return dict(made)


def summary_writer_initializers() -> list[tf.Operation]:
    """Returns the ops that create the summary writers of the default graph."""
    from tensorflow.python.ops import summary_ops_v2

    return list(summary_ops_v2.summary_writer_initializer_op())


def tpu_computation_graph() -> tf.Graph | None:
    """Returns the graph in which the TPU computation that is being traced began, or None.

    It is another than the default graph once control flow or a tf.function was entered since.
    """
    from tensorflow.python.tpu import tpu_replication

    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if isinstance(context, tpu_replication.TPUReplicateContext):
                return graph
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return None


def name_embedding_op(op: tf.Operation, name: str) -> None:
    """Puts the attribute on an op by which graph rewrites pair enqueue, receive and send ops."""
    op._set_attr("_tpu_embedding_layer", tf.compat.v1.AttrValue(s=name.encode()))


def tpu_devices(strategy: Any) -> tuple[list[list[str]], int | None]:
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


def embedding_hardware(strategy: Any) -> str | None:
    """Returns the name of a TPU's `EmbeddingFeature`, None if the TPU does not say."""
    feature = getattr(strategy.extended, "tpu_hardware_feature", None)
    if feature is None or feature.tpu_hardware_feature_proto is None:
        return None
    return str(feature.embedding_feature.value)


def in_saved_model_export() -> bool:
    """Whether a function is being traced for a SavedModel, which holds no queues and no drivers."""
    from tensorflow.python.saved_model import save_context

    return not tf.executing_eagerly() and bool(save_context.in_save_context())


class SavedTensor(tf.__internal__.tracking.AutoTrackable):
    """What a checkpoint holds as one float32 variable, whatever it is made of.

    Subclasses override `slices`, `restore` and `snapshot`.
    """

    _self_setattr_tracking = False  # its attributes are no part of the checkpoint

    def slices(self) -> list[Any]:
        """Returns the parts to write and to read, each with three attributes.

        `spec`, which part it is, as `tf.Variable.SaveSliceInfo.spec` writes it ("" is the whole);
        `read`, a function that returns its value when it is about to be written; `device`, where
        the value is.
        """
        raise NotImplementedError

    def restore(self, values: list[Any]) -> Any:
        """Takes over the values of the parts; returns an op in a graph."""
        raise NotImplementedError

    def snapshot(self, old: Any) -> SavedTensor:
        """Returns a copy that later steps leave alone; `old`, if not None, is brought up to date.

        An asynchronous checkpoint is written from such a copy.
        """
        raise NotImplementedError

    # Not the newer `_serialize_to_tensors`: its restore hands over the first of several slices
    # only (TrackableSaveable.restore in saveable_object_util.py, 2.15 and 2.21).
    def _gather_saveables_for_checkpoint(self) -> dict[str, Callable[..., Any]]:
        from tensorflow.python.training.saving import saveable_object

        class Saveable(saveable_object.SaveableObject):
            def __init__(self, owner: SavedTensor, name: str) -> None:
                self._owner = owner
                specs = [
                    saveable_object.SaveSpec(
                        part.read, part.spec, name, dtype=tf.float32, device=part.device
                    )
                    for part in owner.slices()
                ]
                super().__init__(owner, specs, name)

            def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
                return self._owner.restore(list(restored_tensors))

        return {"VARIABLE_VALUE": lambda name="": Saveable(self, name)}

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        object_map[self] = self.snapshot(object_map.get(self))


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
    _feature_config: Any = None
    _table_config: Any = ()
    _pipeline_execution_with_tensor_core = False

    def _before_save(self) -> Any:
        """Runs before the variables are written."""
        raise NotImplementedError

    def _after_restore(self) -> Any:
        """Runs after the variables were restored."""
        raise NotImplementedError

    def _exported(self) -> dict[str, tf.Variable]:
        """Returns what a SavedModel holds."""
        raise NotImplementedError

    def _track(self, name: str, child: Any) -> None:
        """Makes `child` part of checkpoints; a restore that came before it reaches it now."""
        self._track_trackable(child, name, overwrite=True)

    def _retrieve_variables(self) -> None:
        if not in_saved_model_export():
            self._before_save()

    # An asynchronous checkpoint retrieves after it has copied the variables, which is too late for
    # variables; but it comes to the engine before it comes to the tables.
    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        self._before_save()

    def _load_variables(self) -> None:
        if not in_saved_model_export():
            self._after_restore()

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        if save_type == "savedmodel":
            return self._exported()
        return dict(super()._trackable_children(save_type, **kwargs))

    def _create_copy_for_async_checkpoint(self, **_: Any) -> Any:
        return _SilentEmbedding()


class _SilentEmbedding(tf.tpu.experimental.embedding.TPUEmbedding):
    # Stands for an engine while copies of its tables are written: nothing is to be run then.
    def __init__(self) -> None:
        pass

    def _retrieve_variables(self) -> None:
        pass

    def _load_variables(self) -> None:
        pass


def flatten_with_paths(structure: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns the leaves of a nest, each with the keys and positions that lead to it."""
    from tensorflow.python.util import nest

    return list(nest.flatten_with_tuple_paths(structure))


def per_replica(values: tuple[Any, ...]) -> Any:
    """Returns one value per replica as the distributed value that strategies pass around."""
    from tensorflow.python.distribute import values as distribute_values

    return distribute_values.PerReplica(values)


class ShardedTable(_sharded_variable.ShardedVariableMixin):
    """The shards of a table, each with consecutive rows, as one variable of [rows, dim].

    As stock's, it reads, assigns and saves as one, and has as much of a variable as it takes to
    hand it to a Keras optimizer, which then makes slots for it.
    """

    @property
    def _in_graph_mode(self) -> bool:
        return bool(self.variables[0]._in_graph_mode)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        if dtype is not None and not dtype.is_compatible_with(self.dtype):
            raise ValueError(f"{self.name} is {self.dtype.name}, and cannot be read as {dtype}.")
        return tf.concat([shard.read_value() for shard in self.variables], 0, name or "read")


def plain_variable(**arguments: Any) -> tf.Variable:
    """Makes one resource variable, whatever strategy is in scope.

    Under MirroredStrategy `tf.Variable` makes a copy per replica; a table is one. It belongs to the
    strategy all the same, which Keras optimizers ask for.
    """
    from tensorflow.python.ops import resource_variable_ops

    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    return resource_variable_ops.ResourceVariable(distribute_strategy=strategy, **arguments)


def could_record() -> bool:
    """Whether a `tf.GradientTape` is open in this thread, which could ask for gradients."""
    from tensorflow.python.eager import record

    return bool(record.could_possibly_record())


def in_keras_construction() -> bool:
    """Whether a layer is called with Keras's own placeholders, to learn the shapes it returns."""
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and "scratch_graph" in str(getattr(graph, "name", ""))


def keras_learning_rate(optimizer: Any) -> Any:
    """Returns what the learning rate of a Keras optimizer is made of: a schedule, or a value.

    With a schedule, `learning_rate` of Keras 2's newer optimizers is the rate of the step before.
    """
    made_of = getattr(optimizer, "_learning_rate", None)
    return made_of if callable(made_of) else optimizer.learning_rate
