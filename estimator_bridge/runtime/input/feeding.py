"""Reads batches from an input_fn and spreads them over cores, in TPUEstimator's input modes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeAlias, TypeVar

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.run_config import InputPipelineConfig
from estimator_bridge.runtime.input.feature_splitting import split_batch
from estimator_bridge.runtime.program_types import (
    Hook,
    InputBatch,
    ReadInput,
    RunContext,
    RunValues,
)
from estimator_bridge.settings.legacy_spec import LegacySpec
from tf2_engine import log, tf_compat
from tf2_engine.types import Graph, Ids, Nest, Object, Op, Session, Tensor

THIS_PROCESS: Final = "/device:CPU:0"
"""The only host of a job without a cluster, or of a cluster whose chief reads all input."""

NotifyOfPython: TypeAlias = Callable[[Sequence[str], int], None]
"""Called with the names of the ops that call Python, and the number of bytes that a step reads."""

_Result = TypeVar("_Result")

# (0 for features or 1 for labels, path within them). Sorting gives the order of stock's infeed.
_Place = tuple[int, tuple[str | int, ...]]


@dataclasses.dataclass(frozen=True)
class CoreLayout:
    """Says how a global batch is split over emulated cores, and which hosts read the input."""

    count: int
    input_mode: int  # member of InputPipelineConfig
    batch_axis: tuple[int, ...] | None = None  # of each PER_HOST_V1 tensor; None is axis 0
    # The device of each core's model, or a device function. If empty, TensorFlow places the ops.
    devices: tuple[str | Callable[[Object], str], ...] = ()
    # The devices of the hosts that call the input_fn. Each reads for `count / len(hosts)` cores.
    hosts: tuple[str, ...] = (THIS_PROCESS,)

    def input_batch_size(self, global_batch_size: int) -> int:
        reads_per_core = (InputPipelineConfig.PER_HOST_V2, InputPipelineConfig.PER_SHARD_V1)
        per_core = self.input_mode in reads_per_core
        return global_batch_size // (self.count if per_core else len(self.hosts))

    def model_batch_size(self, global_batch_size: int) -> int:
        return global_batch_size if self.is_broadcast else global_batch_size // self.count

    def on(self, core: int) -> AbstractContextManager[None]:
        return tf.device(self.devices[core]) if self.devices else contextlib.nullcontext()

    @property
    def cores_of_host(self) -> int:
        return self.count // len(self.hosts)

    @property
    def is_broadcast(self) -> bool:
        return self.input_mode == InputPipelineConfig.BROADCAST

    def for_predictions(self) -> CoreLayout:
        """Makes the layout for predictions: only PER_HOST_V1 splits each batch over the cores.

        In other modes, a single core reads all batches. If each core read batches of its own, the
        predictions would not be in the order of the input.
        """
        if self.batch_axis is not None and self.input_mode == InputPipelineConfig.PER_HOST_V1:
            raise errors.WrongType(
                f"`batch_axis`={self.batch_axis} is not possible in predictions; leave it out, or "
                "use InputPipelineConfig.PER_HOST_V2, which does not need it."
            )
        splits = self.input_mode == InputPipelineConfig.PER_HOST_V1
        return self if splits else dataclasses.replace(self, count=1)


class NewSessionHook(tf.train.SessionRunHook):
    """Calls a function with every new session."""

    def __init__(self, function: Callable[[Session], object]) -> None:
        self._function = function

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        self._function(session)


def run_at_start(op: Op) -> NewSessionHook:
    return NewSessionHook(lambda session: session.run(op))


def warn_if_endless(features: Nest) -> None:
    tensors = [leaf for leaf in tf.nest.flatten(features) if isinstance(leaf, tf.Tensor)]
    if any(tensor.op.type == "IteratorGetNext" for tensor in tensors):
        return
    if not tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS):
        # Scripts search logs for stock's wording.
        log.warning(
            "Input graph does not use tf.data.Dataset or contain a QueueRunner: predictions never "
            "end. Return a dataset from the input_fn."
        )


def tell_of_queues() -> None:
    if tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS):
        log.info(
            "Input pipeline contains one or more QueueRunners, which is slow. Return a "
            "tf.data.Dataset from the input_fn."
        )


def read_per_core(
    input_fn: ReadInput,
    cores: CoreLayout,
    legacy: LegacySpec | None = None,
    notify_of_python: NotifyOfPython | None = None,
) -> tuple[list[InputBatch], list[Hook]]:
    """Reads the batch of each core; also returns the hooks that the input needs.

    PER_HOST_V1 splits one batch over the cores. PER_HOST_V2 and PER_SHARD_V1 give each core its own
    batch: PER_HOST_V2 calls the input_fn once per host, PER_SHARD_V1 once per core. BROADCAST gives
    all cores the same batch. `notify_of_python` is called if ops of the input call Python, because
    other hosts cannot run such ops.
    """
    modes = InputPipelineConfig
    if cores.input_mode not in (
        *(modes.PER_HOST_V1, modes.PER_HOST_V2, modes.PER_SHARD_V1, modes.BROADCAST),
    ):
        raise errors.InvalidInput(
            f"TPUConfig.per_host_input_for_training={cores.input_mode} is not supported with "
            "use_tpu=True; use InputPipelineConfig.PER_HOST_V1 or PER_HOST_V2."
        )
    batches: list[InputBatch] = []
    hooks: list[Hook] = []
    in_python: list[str] = []
    for host in cores.hosts:
        (of_host, of_input), names = make_on(host, functools.partial(_read_host, input_fn, cores))
        batches += of_host
        hooks += of_input
        in_python += names
    if in_python and notify_of_python is not None:
        hooks.append(PythonInputHook(in_python, batches, notify_of_python))
    if len(cores.hosts) > 1:
        batches = wait_for_each_other(batches)
    return _spread(batches, cores, legacy), hooks


def _read_host(input_fn: ReadInput, cores: CoreLayout) -> tuple[list[InputBatch], list[Hook]]:
    if cores.input_mode == InputPipelineConfig.PER_HOST_V2:
        where = f"For {cores.count} cores in the PER_HOST_V2 input mode"
        return read(input_fn, cores.cores_of_host, where)
    if cores.input_mode == InputPipelineConfig.PER_SHARD_V1:
        reads = [read(input_fn, 1) for _ in range(cores.cores_of_host)]
        hooks = [hook for _, of_core in reads for hook in of_core]
        return [batch for batches, _ in reads for batch in batches], hooks
    return read(input_fn, 1)


def _spread(
    batches: list[InputBatch], cores: CoreLayout, legacy: LegacySpec | None
) -> list[InputBatch]:
    if cores.is_broadcast:
        return batches * cores.count
    if cores.input_mode != InputPipelineConfig.PER_HOST_V1:
        return batches
    count, axes = cores.cores_of_host, cores.batch_axis
    if axes is not None:
        return [part for batch in batches for part in _split_along(batch, axes, count, legacy)]
    return [
        part
        for batch in batches
        for part in zip(*(split_batch(nest, count) for nest in batch), strict=True)
    ]


def read(input_fn: ReadInput, count: int, where: str = "") -> tuple[list[InputBatch], list[Hook]]:
    with tf.device("/device:CPU:0"):
        source = input_fn()
        if not isinstance(source, (tf.data.Dataset, tf.compat.v2.data.Dataset)):
            if count == 1:
                return [_features_and_labels(source)], []
            kind = type(source).__name__
            raise errors.InvalidInput(
                f"{where} the input_fn must return a tf.data.Dataset, got {kind}."
            )
        iterator = tf.data.make_initializable_iterator(source)
        batches: list[InputBatch] = []
        previous: list[Op] = []
        for _ in range(count):
            # The ops of a step run in any order, but core 0 has to read first.
            with tf.control_dependencies(previous):
                batch = iterator.get_next()
            previous = tf.nest.flatten(batch, expand_composites=True)
            batches.append(_features_and_labels(batch))
    return batches, [run_at_start(iterator.initializer)]


def _features_and_labels(batch: Object) -> InputBatch:
    if isinstance(batch, (list, tuple)):
        if len(batch) != 2:
            raise errors.InvalidInput(
                "input_fn should return (features, labels) as a len 2 tuple, or features alone; "
                f"got {len(batch)} elements."
            )
        return batch[0], batch[1]
    return batch, None


def _split_along(
    batch: InputBatch, axes: Sequence[int], num_cores: int, legacy: LegacySpec | None
) -> list[InputBatch]:
    # `axes` has an axis for each feature, sorted by key, and then for each label. It has no axes
    # for embedding ids and weights, which are not in a TPU's infeed and are split along axis 0.
    features, labels = batch
    ids, rest = _separate_ids(features, legacy)
    nest = [rest] if labels is None else [rest, labels]
    leaves: dict[_Place, Ids] = {
        (position, path): leaf
        for position, part in enumerate(nest)
        for path, leaf in tf_compat.flatten_with_paths(part)
    }
    places = sorted({*leaves, *_added_by_infeed(legacy)})
    if len(places) != len(axes):
        raise errors.InvalidInput(
            f"`batch_axis` has {len(axes)} axes, {tuple(axes)}, but there are {len(places)} "
            f"tensors to split: {[_shown(place) for place in places]}. Give one axis for each "
            "tensor."
        )
    split = {}
    for place, axis in zip(places, axes, strict=True):
        if place in leaves:
            split[place] = _split(leaves[place], axis, num_cores, _shown(place))
        elif axis != 0:
            raise errors.InvalidInput(
                f"`batch_axis` is {axis} for {_shown(place)}, which has a row for each sample. "
                "Set that axis to 0."
            )
    cores = []
    for core, ids_of_core in enumerate(split_batch(ids, num_cores)):
        parts = [split[place][core] for place in leaves]
        rest_of_core, *labels_of_core = tf.nest.pack_sequence_as(nest, parts)
        if ids:
            rest_of_core = {**rest_of_core, **ids_of_core}
        cores.append((rest_of_core, labels_of_core[0] if labels_of_core else None))
    return cores


def _separate_ids(features: Nest, legacy: LegacySpec | None) -> tuple[dict[str, Ids], Nest]:
    if legacy is None or not isinstance(features, Mapping):
        return {}, features
    keys = {key for feature in legacy.features for key in (feature.key, feature.weight_key)}
    keys |= {column.key for column in legacy.tensor_core_columns}
    ids = {key: value for key, value in features.items() if key in keys}
    return ids, {key: value for key, value in features.items() if key not in keys}


def _added_by_infeed(legacy: LegacySpec | None) -> Iterator[_Place]:
    if legacy is None:
        return
    for feature in legacy.features:
        if feature.max_sequence_length:
            yield 0, (tf_compat.sequence_length_key(feature.key),)
    for column in legacy.tensor_core_columns:
        yield from ((0, (column.key,)), (0, (tf_compat.mask_key(column.key),)))


def _shown(place: _Place) -> str:
    position, path = place
    return ".".join((("features", "labels")[position], *map(str, path)))


def _split(leaf: Ids, axis: int, num_cores: int, name: str) -> list[Tensor]:
    if isinstance(leaf, tf.SparseTensor):
        raise errors.InvalidInput(
            f"{name} is sparse, but `batch_axis` is for dense tensors. Convert it to a dense "
            "tensor in the input_fn, or use InputPipelineConfig.PER_HOST_V2, which does not need "
            "`batch_axis`."
        )
    tensor = tf.convert_to_tensor(leaf)
    rank = tensor.shape.rank
    if rank is None or not 0 <= axis < rank:
        raise errors.InvalidInput(
            f"`batch_axis` is {axis} for {name}, which has no such axis: its shape is "
            f"{tensor.shape}. Give an axis from 0 to its rank - 1."
        )
    size = tensor.shape.as_list()[axis]
    if size is not None and size % num_cores:
        raise errors.InvalidInput(
            f"{name} has {size} samples along its axis {axis} (`batch_axis`), which cannot be "
            f"divided evenly among {num_cores} cores. Change the batch size or the number of cores."
        )
    return list(tf.split(tensor, num_cores, axis))


def make_on(host: str, make: Callable[[], _Result]) -> tuple[_Result, list[str]]:
    """Calls `make` to create ops on a host's device.

    Also returns the names of the new ops that call Python.
    If there are such ops, all new ops are placed in this process instead.
    """
    graph = tf.get_default_graph()
    num_ops = len(graph.get_operations())
    with tf.device(_placing(graph, host)):
        result = make()
    if host == THIS_PROCESS:
        return result, []
    ops = graph.get_operations()[num_ops:]
    in_python = tf_compat.ops_in_python(ops)
    if in_python:
        tf_compat.move_ops(ops, host, THIS_PROCESS)
    return result, in_python


def _placing(graph: Graph, host: str) -> Callable[[tf.Operation], str]:
    of_host = tf.DeviceSpec.from_string(host)

    def place(op: tf.Operation) -> str:
        if op.graph is not graph:
            return str(op.device)
        return str(of_host.make_merged_spec(tf.DeviceSpec.from_string(op.device)).to_string())

    return place


def wait_for_each_other(batches: Sequence[InputBatch]) -> list[InputBatch]:
    tensors = [tensor for batch in batches for tensor in _tensors(batch)]
    ready = tf.group(*tensors)

    def wait(leaf: Nest) -> Nest:
        if leaf is None:
            return None
        with tf.control_dependencies([ready]):
            return tf.nest.map_structure(tf.identity, leaf, expand_composites=True)

    return [tf.nest.map_structure(wait, batch) for batch in batches]


class PythonInputHook(tf.train.SessionRunHook):
    """Reports, after the first session call, how many bytes this process reads for all hosts."""

    def __init__(
        self, in_python: Sequence[str], batches: Sequence[InputBatch], notify: NotifyOfPython
    ) -> None:
        self._in_python, self._batches, self._notify = in_python, batches, notify
        self._is_done = False

    def begin(self) -> None:
        counts = [_num_bytes(tensor) for batch in self._batches for tensor in _tensors(batch)]
        self._num_bytes = tf.add_n(counts)

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs | None:
        return None if self._is_done else tf.train.SessionRunArgs(self._num_bytes)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        if not self._is_done:
            self._is_done = True
            self._notify(self._in_python, int(run_values.results))


def _tensors(batch: InputBatch) -> Iterator[Tensor]:
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if leaf is not None:
            yield tf.convert_to_tensor(leaf)


def _num_bytes(tensor: Tensor) -> Tensor:
    if tensor.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(tensor), tf.int64))
    return tf.size(tensor, out_type=tf.int64) * tensor.dtype.size
