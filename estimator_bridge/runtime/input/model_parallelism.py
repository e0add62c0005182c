"""Checks the settings of model parallelism. Replicas run whole, with the results of split ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.run_config import InputPipelineConfig, TPUConfig
from estimator_bridge.runtime.program_types import CallModel, ModelSpec
from tf2_engine.types import Nest, Object

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


def note(config: TPUConfig) -> str:
    partition = ""
    if config.input_partition_dims is not None:
        partition = f", input_partition_dims={config.input_partition_dims!r}"
    return (
        f"TPUConfig(num_cores_per_replica={config.num_cores_per_replica}{partition}): the model "
        "and its input are not split here. Each replica computes its whole model, with the same "
        "results."
    )


def check_input_mode(config: TPUConfig) -> None:
    if config.per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1:
        raise errors.InvalidInput(
            "Model parallelism only supports per host input for training: "
            f"TPUConfig.num_cores_per_replica={config.num_cores_per_replica} with PER_SHARD_V1. "
            "Set per_host_input_for_training to PER_HOST_V2."
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


def checked(model_fn: CallModel, config: TPUConfig) -> CallModel:
    """Wraps a model_fn so that it first checks its batch against `input_partition_dims`."""
    dims, per_replica = config.input_partition_dims, config.num_cores_per_replica
    if dims is None or per_replica is None:
        return model_fn

    def call(features: Nest, labels: Nest) -> ModelSpec:
        _check("features", 0, features, dims[0], per_replica)
        if len(dims) == 2 and dims[1] is not None and labels is not None:
            _check("labels", 1, labels, dims[1], per_replica)
        return model_fn(features, labels)

    return call


def _check(what: str, position: int, batch: Nest, dims: Object, per_replica: int) -> None:
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
        _check(what, position, part, dims_of_part, per_replica)


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
