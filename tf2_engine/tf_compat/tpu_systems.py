"""Functions for TPU systems: hardware, devices, strategies and SparseCores."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import cast

import tensorflow as tf
from tensorflow.core.protobuf.tpu import topology_pb2 as _topology
from tensorflow.python.distribute import tpu_strategy as _tpu_strategy
from tensorflow.python.tpu import tpu_system_metadata as _tpu_system_metadata

from tf2_engine.tf_compat.patching import patched
from tf2_engine.types import Ids, Message, Object, Strategy, Tensor, Variable


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
    """Makes stock's TPUEmbeddingV2, from now on, call two functions when it reads ids.

    `before` converts the ids. `after` is called with an output of the op that reads the ids, and
    with the feature.
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
    """Makes a sharded, unpacked variable usable on a single device, from now on.

    Stock selects the part of the variable by device. Software cores share a device, so the part is
    selected by position.
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

    The number is None without a device assignment. With a device assignment, the TPU is configured
    for model parallelism even if a replica has only one core.
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
"""The class behind TPUStrategy, the base class of the software TPU's strategy."""


def tpu_replica_context(
    strategy: Strategy, replica: int
) -> contextlib.AbstractContextManager[object]:
    return _tpu_strategy._TPUReplicaContext(strategy, replica_id_in_sync_group=replica)


def do_not_pack_variables(strategy: Strategy) -> None:
    """Keeps a strategy from packing the copies of a variable into one handle.

    A packed handle selects the copy by device, but all software cores share one device.
    """
    strategy._enable_packed_variable_in_eager_mode = False
