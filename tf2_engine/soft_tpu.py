"""A TPU in software: a TPUStrategy with cores that run on the CPU and execute TPU embedding ops."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import tensorflow as tf

from tf2_engine import errors, optimizers, soft_sparsecore, tf_compat
from tf2_engine.native import RULES, build
from tf2_engine.types import Nest, Object, Tensor, TensorLike

OPTIMIZERS = tuple(
    sorted(kind.op_name for kind in optimizers.OPTIMIZERS.values() if kind.proto_field in RULES)
)
"""The software TPU's optimizers, under their names in the ops that load and retrieve tables."""

KERNELS = (
    *("ConfigureDistributedTPU", "ConfigureTPUEmbedding", "CrossReplicaSum"),
    "DynamicEnqueueTPUEmbeddingArbitraryTensorBatch",
    "DynamicEnqueueTPUEmbeddingRaggedTensorBatch",
    "EnqueueTPUEmbeddingArbitraryTensorBatch",
    "EnqueueTPUEmbeddingIntegerBatch",
    "EnqueueTPUEmbeddingRaggedTensorBatch",
    "EnqueueTPUEmbeddingSparseBatch",
    "EnqueueTPUEmbeddingSparseTensorBatch",
    *("InfeedDequeue", "InfeedDequeueTuple", "InfeedEnqueue", "InfeedEnqueueTuple"),
    "IsTPUEmbeddingInitialized",
    *("OutfeedDequeue", "OutfeedDequeueTuple", "OutfeedDequeueTupleV2", "OutfeedDequeueV2"),
    *("OutfeedEnqueue", "OutfeedEnqueueTuple"),
    *("RecvTPUEmbeddingActivations", "SendTPUEmbeddingGradients", "TPUEmbeddingActivations"),
    *("ShutdownDistributedTPU", "TPUCompilationResult"),
    *("TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput"),
    *(f"LoadTPUEmbedding{name}Parameters" for name in OPTIMIZERS),
    *(f"RetrieveTPUEmbedding{name}Parameters" for name in OPTIMIZERS),
)
"""The ops for which the software TPU has kernels."""

SOURCE = "software_tpu/software_tpu.cc"

_library: ctypes.CDLL | None = None
_starts = 0
_loading = threading.Lock()


def start(
    num_cores: int = 1,
    sparse_cores: int = 0,
    out_of_range_ids: soft_sparsecore.OutOfRangeIds = "error",
) -> None:
    """Starts or restarts the software TPU of this process. Earlier tables and batches are dropped.

    `sparse_cores` is the number of SparseCores per core; 0 means first-generation hardware.
    """
    if num_cores < 1:
        raise errors.InvalidSpec(f"`num_cores`={num_cores}; a software TPU has at least one core.")
    _check_placement()
    _settle_placement()
    global _library, _starts
    with _loading:
        if _library is None:
            library = build.load_kernels("A software TPU", SOURCE, ops_with_kernels())
            library.software_tpu_waiting.restype = ctypes.c_int64
            _library = library
        if sparse_cores:
            soft_sparsecore.start(num_cores, sparse_cores, out_of_range_ids)
        _starts += 1
    _library.software_tpu_start(num_cores, sparse_cores)


def num_starts() -> int:
    return _starts


def ops_with_kernels() -> list[str]:
    return [name for name in KERNELS if tf_compat.num_kernels(name)]


def is_loaded() -> bool:
    return _library is not None


def num_waiting() -> int:
    waiting = int(_library.software_tpu_waiting()) if _library is not None else 0
    return waiting + soft_sparsecore.num_waiting()


@contextlib.contextmanager
def instead_of_tpu() -> Iterator[None]:
    """Makes TensorFlow's own TPUEstimator use one software core as its TPU.

    More cores are not possible, because TPUEstimator relies on a TPU's compiler to copy the
    computation to each core.
    """
    start()
    with tf_compat.tpu_metadata(tpu_system_metadata(1)):
        yield


class SoftTPUStrategy(tf.distribute.TPUStrategy):
    """A TPUStrategy over software cores, one per replica, for functions with TPU embedding ops.

        strategy = tf2_engine.soft_tpu.SoftTPUStrategy(num_cores=2)
        with strategy.scope():
            embedding = tf.tpu.experimental.embedding.TPUEmbedding(...)

    `strategy.run` runs the function once per core, on CPU threads of this process. Nothing is
    compiled, so shapes need not be static, and any op may be used. A process has one software TPU,
    with one host and without model parallelism. A new strategy restarts the software TPU and drops
    its tables.

    Args:
        hardware: the embedding hardware, "v1" as in TPU v2 and v3, or "sparsecore" as in v5p, v6e
            and TPU7x. "sparsecore" is for TPUEmbeddingV2, and needs TensorFlow 2.21.
        sparse_cores: the number of SparseCores per core: 1, 2 or 4 (4 on a v5p, 2 on a v6e).
        out_of_range_ids: "error" raises an InvalidArgumentError that names the feature and the id
            for an id outside its table. With "hardware", such an id silently uses a row of padding
            or of another table, as on real SparseCores.
    """

    def __init__(
        self,
        num_cores: int = 1,
        *,
        hardware: Literal["v1", "sparsecore"] = "v1",
        sparse_cores: int = 4,
        out_of_range_ids: soft_sparsecore.OutOfRangeIds = "error",
    ) -> None:
        if hardware not in ("v1", "sparsecore"):
            raise errors.InvalidSpec(f"`hardware` must be 'v1' or 'sparsecore', got {hardware!r}.")
        if hardware == "sparsecore":
            soft_sparsecore.check(num_cores, sparse_cores, out_of_range_ids)
        self._sparse_cores = sparse_cores if hardware == "sparsecore" else 0
        start(num_cores, self._sparse_cores, out_of_range_ids)
        # Bypasses the constructor of TPUStrategy, which searches for a TPU.
        resolver = _Resolver(num_cores, self._sparse_cores)
        tf.distribute.Strategy.__init__(self, _SoftExtended(self, resolver))
        tf_compat.do_not_pack_variables(self)

    def __repr__(self) -> str:
        each = f" with {self._sparse_cores} SparseCores each" if self._sparse_cores else ""
        return f"<SoftTPUStrategy {self.num_replicas_in_sync} cores{each}>"


class _Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    # `tf.tpu.experimental.initialize_tpu_system` reads this; "local" is this process.
    _tpu = "local"

    def __init__(self, num_cores: int, sparse_cores: int = 0) -> None:
        self._num_cores, self._sparse_cores = num_cores, sparse_cores

    def get_master(self) -> str:
        return ""

    def get_tpu_system_metadata(self) -> Object:
        return tpu_system_metadata(self._num_cores)

    @property
    def tpu_hardware_feature(self) -> Object:
        generation = "V2" if self._sparse_cores else "V1"
        return tf_compat.tpu_hardware(embedding_feature=generation, sparse_cores=self._sparse_cores)

    def get_job_name(self) -> str:
        return "localhost"

    def master(self, *_: object, **__: object) -> str:
        return ""

    def cluster_spec(self) -> None:
        return None


def tpu_system_metadata(num_cores: int) -> Object:
    host = "/job:localhost/replica:0/task:0/device:"
    kinds = ["CPU:0", *(f"TPU:{core}" for core in range(num_cores))]
    coordinates = [[[core, 0, 0, 0] for core in range(num_cores)]]
    return tf.tpu.experimental.TPUSystemMetadata(
        num_cores=num_cores,
        num_hosts=1,
        num_of_cores_per_host=num_cores,
        topology=tf.tpu.experimental.Topology(
            mesh_shape=[num_cores, 1, 1, 1], device_coordinates=np.array(coordinates, np.int32)
        ),
        devices=tuple(_Device(host + kind, kind.split(":")[0]) for kind in kinds),
    )


# The attributes of a device that TensorFlow reads.
_Device = collections.namedtuple("_Device", "name device_type")


class _SoftExtended(tf_compat.TPUExtended):
    def _tpu_function_creator(
        self, fn: Callable[..., Nest], options: Object
    ) -> Callable[..., Nest]:
        _check_placement()
        eager = tf.executing_eagerly()
        if eager and fn in self._tpu_function_cache:
            return self._tpu_function_cache[fn]
        strategy = self._container_strategy()

        def run_all(args: Nest, kwargs: Nest) -> Nest:
            computation = _Computation(strategy.num_replicas_in_sync)
            outputs = []
            for core in range(computation.num_cores):
                core_args, core_kwargs = _as_arguments(
                    tf_compat.select_replica(core, (args, kwargs or {}))
                )
                with (
                    strategy.scope(),
                    computation.core(core),
                    tf_compat.tpu_replica_context(strategy, core),
                ):
                    outputs.append(_as_outputs(fn(*core_args, **core_kwargs)))
            return tf_compat.regroup(tuple(outputs))

        if eager:
            run_all = tf.function(run_all, autograph=False)
            self._tpu_function_cache[fn] = run_all
        return run_all

    def _broadcast_to(self, tensor: TensorLike, destinations: Object) -> TensorLike:
        """Copies the first core's value to every core, as optimizers need for `iterations`.

        The value's bits are summed with zeros from the other cores, so no bit changes.
        """
        if _traced.core is None or isinstance(tensor, int | float):
            return super()._broadcast_to(tensor, destinations)
        bits = tf.bitcast(tensor, tf.int32)
        bits = tf.raw_ops.CrossReplicaSum(
            input=bits if _traced.core == 0 else tf.zeros_like(bits),
            group_assignment=[list(range(self._num_replicas_in_sync))],
        )
        return tf.bitcast(bits, tensor.dtype)


class _Traced(threading.local):
    core: int | None = None
    run = -1
    calls: Iterator[int] = itertools.count()


_traced = _Traced()


def next_call() -> str | None:
    """Returns the same name on every core for a call in `strategy.run`; None outside of it."""
    return None if _traced.core is None else f"{_traced.run}_{next(_traced.calls)}"


class _CoreContext(tf_compat.TPUReplicateContext):
    """A context that marks code as a TPU computation, but leaves traced ops unchanged."""

    def __init__(self, core: int, num_cores: int) -> None:
        super().__init__(f"software_core_{core}", num_cores, tf.no_op())
        self._core = core

    def get_replicated_var_handle(
        self, name: str, handle_id: str, vars_: Object, *_: object, **__: object
    ) -> Tensor:
        variable = vars_[self._core]
        return variable.handle if isinstance(variable, tf.Variable) else variable

    def AddOp(self, op: tf.Operation) -> None:  # noqa: N802 - TensorFlow's name
        if self._outer_context:
            self._outer_context.AddInnerOp(op)

    def AddValue(self, val: Tensor) -> Tensor:  # noqa: N802
        return self._outer_context.AddValue(val) if self._outer_context else val


class _Computation:
    """Traces a function once for each core.

    All cores are threads of one CPU device. Therefore a device function marks every new TPU op with
    attributes that name the op's core, also in control flow and nested tf.functions.
    """

    _numbers = itertools.count()

    _EMBEDDING = (
        *("EnqueueTPUEmbedding", "RecvTPUEmbedding", "SendTPUEmbedding", "DynamicEnqueue"),
        soft_sparsecore.ON_DEVICE,
    )
    _SUM = "CrossReplicaSum"
    _MARKED = (*_EMBEDDING, "Infeed", "Outfeed", _SUM)

    def __init__(self, num_cores: int) -> None:
        self.num_cores = num_cores
        self._number = next(self._numbers)

    @contextlib.contextmanager
    def core(self, core: int) -> Iterator[None]:
        sums = itertools.count()
        last: weakref.WeakKeyDictionary[tf.Graph, tf.Operation] = weakref.WeakKeyDictionary()

        def mark(op: tf.Operation) -> str:
            if not op.type.startswith(self._MARKED):
                return op.device
            attributes: dict[str, int | str] = {"_software_tpu_core": core}
            if op.type == self._SUM:
                # The parts of a sum have the same name on all cores.
                name = f"{self._number}/{next(sums)}"
                attributes |= {"_software_tpu_cores": self.num_cores, "_software_tpu_sum": name}
            tf_compat.set_attributes(op, attributes)
            if op.type.startswith(self._EMBEDDING):
                # A core runs its ops one after another, even if they are independent.
                if op.graph in last:
                    tf_compat.run_after(op, last[op.graph])
                last[op.graph] = op
            return op.device

        outer = dict(vars(_traced))
        _traced.core, _traced.run, _traced.calls = core, self._number, itertools.count()
        graph = tf.compat.v1.get_default_graph()
        context = _CoreContext(core, self.num_cores)
        with graph.device(mark), tf_compat.tpu_shard_context(self.num_cores):
            context.Enter()
            try:
                yield
            finally:
                context.Exit()
                vars(_traced).clear()
                vars(_traced).update(outer)


def _as_arguments(values: Nest) -> Nest:
    """Marks tensors as arguments, because stock's `enqueue` in `strategy.run` needs the marks."""

    def mark(value: Nest) -> Nest:
        if not isinstance(value, tf.Tensor) or value.dtype == tf.resource:
            return value
        marked = tf.identity(value)
        tf_compat.set_attributes(marked.op, {tf_compat.ARGUMENT_ATTRIBUTE: True})
        return marked

    return tf.nest.map_structure(mark, values, expand_composites=True)


def _as_outputs(values: Nest) -> Nest:
    ops = [value for value in tf.nest.flatten(values) if isinstance(value, tf.Operation)]

    def copy(value: Nest) -> Nest:
        if value is None or isinstance(value, tf.Operation):
            return None
        return tf.identity(value)

    with tf.control_dependencies(ops):
        return tf.nest.map_structure(copy, values, expand_composites=True)


def _check_placement() -> None:
    with tf.init_scope():  # A tf.function reports soft placement as off.
        # A session, which runs a tf.Graph, has its own setting.
        soft = not tf.executing_eagerly() or tf.config.get_soft_device_placement()
    if not soft:
        raise errors.InvalidSpec(
            "A software TPU needs soft device placement, which is off "
            "(`tf.config.set_soft_device_placement(False)`): its cores are not devices, and ops "
            "that are meant for a TPU have to fall back to the CPU. Turn it on."
        )


def _settle_placement() -> None:
    """Turns on soft placement, with which an op runs on the CPU if it has no other kernel.

    If TensorFlow was initialized while a graph was built, soft placement is off for eager ops,
    although it is reported as on.
    """
    with tf.init_scope():
        if tf.executing_eagerly():
            tf.config.set_soft_device_placement(True)
