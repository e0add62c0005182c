"""Creates real TPUStrategies, to build graphs on a machine without a TPU.

Also gives tests access to stock's TPUEmbedding, which needs a few temporary patches to build its
graphs here. No code of stock is copied.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.tpu import tpu_embedding_v2
from tensorflow.python.tpu.ops import tpu_ops

from tf2_engine import tf_compat


class _Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    """A cluster resolver that gives TPUStrategy the data of a TPU that does not exist."""

    def __init__(self, metadata: Any, sparse_cores: int = 0) -> None:
        self._metadata, self._sparse_cores = metadata, sparse_cores

    @property
    def tpu_hardware_feature(self) -> Any:
        if not self._sparse_cores:
            return super().tpu_hardware_feature
        return tf_compat.tpu_hardware(embedding_feature="V2", sparse_cores=self._sparse_cores)

    def get_tpu_system_metadata(self) -> Any:
        return self._metadata

    def get_job_name(self) -> str:
        return "worker"

    def cluster_spec(self) -> None:
        return None


def strategy(
    num_hosts: int,
    cores_per_host: int,
    *,
    job: str = "worker",
    cores_per_replica: int | None = None,
    order: Callable[[list[Any]], list[Any]] = list,
    sparse_cores: int = 0,
) -> Any:
    """Creates a TPUStrategy.

    Args:
        job: with "localhost", the one host of a topology is the machine that runs the test.
        cores_per_replica: creates a device assignment. None means no device assignment.
        order: sorts the devices that the TPU reports.
        sparse_cores: the number that the TPU reports for each core. 0 means it does not report any.
    """
    devices = []
    for task in range(num_hosts):
        kinds = ["CPU:0", *(f"TPU:{core}" for core in range(cores_per_host))]
        devices += [
            types.SimpleNamespace(name=f"/job:{job}/replica:0/task:{task}/device:{kind}")
            for kind in kinds
        ]
    # Chips in a row, with one core each.
    coordinates = [
        [[task * cores_per_host + core, 0, 0, 0] for core in range(cores_per_host)]
        for task in range(num_hosts)
    ]
    num_cores = num_hosts * cores_per_host
    topology = tf.tpu.experimental.Topology(
        mesh_shape=[num_cores, 1, 1, 1], device_coordinates=np.array(coordinates, np.int32)
    )
    metadata = tf.tpu.experimental.TPUSystemMetadata(
        num_cores=num_cores,
        num_hosts=num_hosts,
        num_of_cores_per_host=cores_per_host,
        topology=topology,
        devices=tuple(order(devices)),
    )
    assignment = None
    if cores_per_replica:
        assignment = tf.tpu.experimental.DeviceAssignment.build(
            topology,
            computation_shape=[cores_per_replica, 1, 1, 1],
            num_replicas=num_cores // cores_per_replica,
        )
    return tf.distribute.TPUStrategy(
        _Resolver(metadata, sparse_cores), experimental_device_assignment=assignment
    )


def distribute(strategy: Any, values: Sequence[Any]) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group]
    )


@contextlib.contextmanager
def recorded(initialized: bool = False) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """While open, ops that need a TPU are recorded instead of created.

    These are the ops that configure, load, retrieve and enqueue.

    Args:
        initialized: whether the TPU claims to be initialized.

    Returns:
        A list of the names and arguments of the ops.
    """
    ops: list[tuple[str, dict[str, Any]]] = []

    def stand_in(name: str) -> Callable[..., Any]:
        def op(**arguments: Any) -> Any:
            ops.append((name, arguments))
            if name == "IsTPUEmbeddingInitialized":
                return tf.constant(initialized)
            with tf.device(None):  # the op's own device does not exist
                return tf.no_op()

        return op

    with contextlib.ExitStack() as stack:
        for name in dir(tf.raw_ops):
            if name.startswith(("LoadTPUEmbedding", "RetrieveTPUEmbedding")) or name in (
                "ConfigureTPUEmbedding",
                "EnqueueTPUEmbeddingArbitraryTensorBatch",
                "IsTPUEmbeddingInitialized",
            ):
                stack.enter_context(mock.patch.object(tf.raw_ops, name, stand_in(name)))
        yield ops


def stock_optimizer(name: str, **settings: Any) -> Any:
    """Creates one of stock's optimizers in such a way that stock accepts it."""
    optimizer = getattr(tf.tpu.experimental.embedding, name)(**settings)
    # Stock assigns this bool to an enum, which Protobuf 7 does not accept.
    optimizer.low_dimensional_packing_status = 0
    return optimizer


def stock_shards(initializer: Any, shape: tuple[int, int], num_hosts: int) -> list[Any]:
    """Returns the initial values of a table's shards in stock. Hosts without rows have none."""
    creator = tpu_embedding_v2.make_sharded_variable_creator(["/CPU:0"] * num_hosts)
    with tf.variable_creator_scope(creator):
        variable = tf.Variable(
            functools.partial(initializer, shape, dtype=tf.float32), trainable=False, name="table"
        )
    return [shard.numpy() for shard in variable.variables]


@contextlib.contextmanager
def stock_builds(*, device_ops: bool = True) -> Iterator[None]:
    """While open, stock's TPUEmbedding builds, loads and retrieves without a TPU.

    Args:
        device_ops: whether to create ops for the TPU, which would run in eager mode.
    """
    with contextlib.ExitStack() as stack:
        # There is no TPU to ask, and in a graph stock uses the resulting tensor as a bool.
        stack.enter_context(
            mock.patch.object(tpu_ops, "is_tpu_embedding_initialized", return_value=False)
        )
        if device_ops:
            stack.enter_context(_moves(lambda function: function.python_function))
            # Ops that stock wraps in a tf.function are then in the graph itself, to be compared.
            tf.config.run_functions_eagerly(True)
            stack.callback(tf.config.run_functions_eagerly, False)
        else:
            stack.enter_context(_moves(lambda function: lambda *arguments: None))
            name = "initialize_system_for_tpu_embedding"
            stack.enter_context(mock.patch.object(tpu_embedding_v2.tpu, name))
        yield


def stock_runs() -> contextlib.AbstractContextManager[None]:
    """While open, stock's TPUEmbedding loads and retrieves on an existing TPU."""
    return _moves(lambda function: function)


@contextlib.contextmanager
def _moves(change: Callable[[Any], Any]) -> Iterator[None]:
    """While open, replaces stock's functions that load and retrieve by `change(function)`."""

    def with_plain_dicts(function: Any) -> Any:
        # Trackable objects wrap stock's dicts. With TensorFlow 2.15 and a newer typing_extensions,
        # a tf.function does not accept the wrappers.
        def call(config: Any, hosts: Any, variables: Any, tables: Any) -> Any:
            plain = {name: dict(slots.items()) for name, slots in variables.items()}
            return change(function)(config, hosts, plain, tables)

        return call

    with contextlib.ExitStack() as stack:
        for name in ("_load_variables_impl", "_retrieve_variables_impl"):
            wrapped = with_plain_dicts(getattr(tpu_embedding_v2, name))
            stack.enter_context(mock.patch.object(tpu_embedding_v2, name, wrapped))
        yield
