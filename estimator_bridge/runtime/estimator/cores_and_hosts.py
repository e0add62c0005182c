"""The cores and replicas that a TPUEstimator emulates, and the hosts that call its input_fn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.defaults import (
    CORES_VARIABLE,
    INPUT_HOSTS_VARIABLE,
    default_cores,
    default_input_hosts,
)
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.legacy.run_config import InputPipelineConfig, TPUConfig
from estimator_bridge.runtime.input.feeding import THIS_PROCESS, CoreLayout
from estimator_bridge.runtime.program_types import CallModel, InputFn, ModelSpec
from tf2_engine.types import Nest, Object


def num_replicas(config: TPUConfig) -> int:
    cores, per_replica = default_cores(), config.num_cores_per_replica or 1
    if cores is None:
        return config.num_shards or 1
    if cores % per_replica:
        raise errors.InvalidInput(
            f"TPUConfig.num_cores_per_replica={per_replica} does not divide the {cores} core(s) of "
            f"`run --cores` or ${CORES_VARIABLE}. Change one of them."
        )
    replicas = cores // per_replica
    if config.num_shards not in (None, replicas):
        raise errors.InvalidInput(
            f"TPUConfig.num_shards is not set correctly: it is {config.num_shards}, but {cores} "
            f"core(s) are set by `run --cores` or ${CORES_VARIABLE}, enough for {replicas} "
            "replica(s). Set only one of these."
        )
    return replicas


def input_hosts(
    workers: Sequence[str], mode: str, input_mode: int, num_cores: int
) -> tuple[str, ...]:
    """Lists the devices of the hosts that call the input_fn; all feed the same number of cores.

    As on a TPU pod, there are several hosts only in training and in PER_HOST_V2 evaluations.
    """
    asked = default_input_hosts()
    count = asked or len(workers) or 1
    if workers and count not in (1, len(workers)):
        raise errors.InvalidInput(
            f"`run --input_hosts` or ${INPUT_HOSTS_VARIABLE} sets {count} host(s), but the cluster "
            f"has {len(workers)} workers, each of which reads its own input. Set {len(workers)}, "
            "or set 1 to let the chief read for all workers."
        )
    if asked and num_cores % asked:
        raise errors.InvalidInput(
            f"`run --input_hosts` or ${INPUT_HOSTS_VARIABLE} sets {count} host(s), which do not "
            f"divide the {num_cores} core(s) of TPUConfig.num_shards evenly. Change one of the two."
        )
    if asked == 1 or not _is_read_by_all(mode, input_mode):
        return (THIS_PROCESS,)
    return tuple(workers) or (THIS_PROCESS,) * count


def _is_read_by_all(mode: str, input_mode: int) -> bool:
    if mode == ModeKeys.TRAIN:
        return input_mode != InputPipelineConfig.BROADCAST
    return mode == ModeKeys.EVAL and input_mode == InputPipelineConfig.PER_HOST_V2


def all_read_the_same(input_fn: InputFn, num_hosts: int) -> str:
    return (
        f"The input_fn {_name(input_fn)} is called for each of {num_hosts} hosts, as on a TPU pod, "
        "but does not ask which host calls it, so all hosts read the same data. To give each host "
        "its own part, shard the data by params['context'].current_input_fn_deployment()[1:3] (the "
        "index of this call, and the number of calls). Or let the chief read for all workers, "
        f"with `estimator-bridge run --input_hosts 1` or {INPUT_HOSTS_VARIABLE}=1."
    )


def chief_reads_unsharded(input_fn: InputFn, num_hosts: int) -> str:
    return (
        f"The input_fn {_name(input_fn)} does not ask which host calls it, so the chief reads for "
        f"all {num_hosts} workers, as on one machine. To let each worker read its own part, shard "
        "the data by params['context'].current_input_fn_deployment()[1:3]. To let all workers read "
        f"the same data, use `estimator-bridge run --input_hosts {num_hosts}` or "
        f"{INPUT_HOSTS_VARIABLE}={num_hosts}."
    )


def chief_reads(input_fn: InputFn, num_hosts: int, names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"The input_fn {_name(input_fn)} calls Python (op {names[0]!r}{more}). Only the chief has "
        f"the called functions, so it reads for all {num_hosts} worker(s). If the input_fn used "
        "only TensorFlow's ops, each worker would read its own input."
    )


def _name(function: Callable[..., Object]) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


_HOST = "/replica:0/task:0/device:CPU:0"
_HOST_OF_REPLICA = "/task:0/device:CPU:0"  # stock shortens the device in the same way


class TPUContext:
    """`params["context"]`, which tells a model_fn or input_fn about its host and its replicas.

    `host_was_asked_for` is True once an input_fn has asked which host calls it.

    Args:
        input_fn_call: the zero-based index of this call to the input_fn. None for a model_fn.
        device_assignment: computes the cores of each replica, in jobs with model parallelism.
    """

    def __init__(
        self,
        cores: CoreLayout,
        input_fn_call: int | None = None,
        device_assignment: Callable[[], Object] | None = None,
    ) -> None:
        self._cores, self._input_fn_call = cores, input_fn_call
        self._device_assignment = device_assignment
        self.num_replicas, self.num_of_replicas_per_host = cores.count, cores.cores_of_host
        self.num_hosts = len(cores.hosts)
        self.host_was_asked_for = False

    def __repr__(self) -> str:
        call = self._input_fn_call
        where = "model_fn" if call is None else f"input_fn, call {call}"
        return f"<TPUContext {self.num_replicas} replicas, {where}>"

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Returns (device of the host, index of this call, number of calls, number of replicas).

        Only the replicas that use this call are counted. Raises WrongCaller in a model_fn.
        """
        index = self._index_of_call("current_input_fn_deployment")
        calls = len(self._cores.hosts) * self._calls_of_host
        host = self.tpu_host_placement_function(index // self._calls_of_host)
        return host, index, calls, self._cores.count // calls

    @property
    def current_host(self) -> int:
        """The index of the host that calls the input_fn; raises WrongCaller in a model_fn."""
        return self._index_of_call("current_host") // self._calls_of_host

    @property
    def _calls_of_host(self) -> int:
        per_core = self._cores.input_mode == InputPipelineConfig.PER_SHARD_V1
        return self._cores.cores_of_host if per_core else 1

    @property
    def device_assignment(self) -> Object:
        """The `tf.tpu.experimental.DeviceAssignment`, or None without model parallelism.

        Raises WrongCaller in an input_fn.
        """
        if self._input_fn_call is not None:
            raise errors.WrongCaller(
                "This TPUContext instance must not be called from input_fn: `device_assignment` is "
                "for the model_fn."
            )
        return None if self._device_assignment is None else self._device_assignment()

    def device_for_replica(self, replica_id: int) -> tuple[str, int]:
        if not 0 <= replica_id < self.num_replicas:
            raise errors.InvalidInput(
                f"There is no device for replica {replica_id}; the job has {self.num_replicas} "
                f"replica(s) (TPUConfig.num_shards), 0 to {self.num_replicas - 1}."
            )
        host, position = divmod(replica_id, self._cores.cores_of_host)
        device = self._cores.hosts[host]
        return (_HOST_OF_REPLICA if device == THIS_PROCESS else device), position

    def tpu_host_placement_function(self, host_id: int = 0) -> str:
        if host_id not in range(self.num_hosts):
            raise errors.InvalidInput(
                f"There is no host {host_id!r}; the job has {self.num_hosts} host(s), 0 to "
                f"{self.num_hosts - 1}."
            )
        device = self._cores.hosts[host_id]
        return _HOST if device == THIS_PROCESS else device

    def _index_of_call(self, name: str) -> int:
        if self._input_fn_call is None:
            raise errors.WrongCaller(
                f"This TPUContext instance must not be called from model_fn: `{name}` is for the "
                "input_fn."
            )
        self.host_was_asked_for = True
        return self._input_fn_call


# A chip has two cores. Larger replicas use neighbouring chips.
_SHAPES = {
    1: (1, 1, 1, 1),
    2: (1, 1, 1, 2),
    4: (1, 2, 1, 2),
    8: (2, 2, 1, 2),
    16: (4, 2, 1, 2),
    32: (4, 4, 1, 2),
    64: (8, 4, 1, 2),
    128: (8, 8, 1, 2),
}


def check_model_parallelism(config: TPUConfig) -> str:
    """Checks the input mode; returns a message for users about replicas with several cores."""
    if config.per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1:
        raise errors.InvalidInput(
            "Model parallelism only supports per host input for training: "
            f"TPUConfig.num_cores_per_replica={config.num_cores_per_replica} with PER_SHARD_V1. "
            "Set per_host_input_for_training to PER_HOST_V2."
        )
    partition = ""
    if config.input_partition_dims is not None:
        partition = f", input_partition_dims={config.input_partition_dims!r}"
    return (
        f"TPUConfig(num_cores_per_replica={config.num_cores_per_replica}{partition}): the model "
        "and its input are not split over these cores. Each replica computes the whole model, with "
        "the same results."
    )


def device_assignment(num_replicas: int, num_cores_per_replica: int) -> Object:
    """Assigns neighbouring cores to each replica, on the smallest TPU that has enough cores."""
    x, y, z, cores = _SHAPES[num_cores_per_replica]
    mesh = [x * num_replicas, y, z, cores]
    coordinates = np.array(list(np.ndindex(*mesh)), np.int32)
    topology = tf.tpu.experimental.Topology(
        mesh_shape=mesh, device_coordinates=coordinates[np.newaxis]
    )
    of_replicas = coordinates.reshape(num_replicas, num_cores_per_replica, len(mesh))
    return tf.tpu.experimental.DeviceAssignment(topology, of_replicas)


def with_checked_partition(model_fn: CallModel, config: TPUConfig) -> CallModel:
    """Wraps a model_fn so that it first checks its batch against `input_partition_dims`."""
    dims, per_replica = config.input_partition_dims, config.num_cores_per_replica
    if dims is None or per_replica is None:
        return model_fn

    def call(features: Nest, labels: Nest) -> ModelSpec:
        _check_partition("features", 0, features, dims[0], per_replica)
        if len(dims) == 2 and dims[1] is not None and labels is not None:
            _check_partition("labels", 1, labels, dims[1], per_replica)
        return model_fn(features, labels)

    return call


def _check_partition(what: str, position: int, batch: Nest, dims: Object, per_replica: int) -> None:
    where = f"TPUConfig.input_partition_dims[{position}]"
    if isinstance(batch, Mapping):
        if what == "labels" and not isinstance(dims, Mapping):
            raise _mismatch(where, what, batch, dims)
        parts = [(batch[key], dims[key]) for key in _same_keys(where, what, batch, dims)]
    elif isinstance(batch, (list, tuple)):
        if not isinstance(dims, (list, tuple)) or len(dims) != len(batch):
            raise _mismatch(where, what, batch, dims)
        parts = list(zip(batch, dims, strict=True))
    else:
        if isinstance(dims, Mapping):
            _same_keys(where, what, {}, dims)
        if dims is not None:
            _check_dims(where, batch, list(dims), per_replica)
        return
    for part, dims_of_part in parts:
        _check_partition(what, position, part, dims_of_part, per_replica)


def _same_keys(where: str, what: str, batch: Mapping[str, Nest], dims: Object) -> list[str]:
    expected = sorted(batch)
    keys = sorted(dims) if isinstance(dims, Mapping) else dims
    if keys != expected:
        raise errors.InvalidInput(
            f"{where} mismatched {what.removesuffix('s')} keys. Expected {expected}, got {keys}."
        )
    return expected


def _mismatch(where: str, what: str, batch: Nest, dims: Object) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{where} mismatched the structure of {what}. {where}: {dims}, {what}: {batch}."
    )


def _check_dims(where: str, tensor: Object, dims: Sequence[int], per_replica: int) -> None:
    if any(size < 1 for size in dims):
        raise errors.InvalidInput(f"All input partition dims must be >= 1; {where} has {dims}.")
    parts = math.prod(dims)
    if parts == 1:
        return
    if parts != per_replica:
        raise errors.InvalidInput(
            "The product of each input partition dim should equal to num_cores_per_replica. (dim = "
            f"{dims}, num_cores_per_replica = {per_replica})"
        )
    if tensor.shape.rank != len(dims):
        raise errors.InvalidInput(
            "Input partition dims must have the same number of dimensions as the `Tensor` to be "
            f"partitioned. (tensor shape = {tensor.shape}, input partition dims = {dims})."
        )
