"""Places ops in a cluster: each core on its worker, and the model's variables on the servers.

The engine's driver places the tables and everything else that it adds to a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.cluster.tasks import Cluster
from tf2_engine import tf_compat
from tf2_engine.types import Object

DeviceFunction = Callable[[Object], str]
"""Maps an op under construction to its device."""


def core_devices(cluster: Cluster, workers: Sequence[str]) -> tuple[DeviceFunction, ...]:
    """Makes a device function for the model ops of each core, which run on one of `workers`.

    Each variable goes to the parameter server with the fewest bytes so far. Ops that call Python
    stay in the chief, which alone has the functions.
    """
    strategy = _Balanced(len(cluster.servers))
    return tuple(_of_core(cluster, worker, strategy) for worker in workers)


def following(device_fn: DeviceFunction | None) -> DeviceFunction:
    """Makes a device function that places ops without a device on the device of their inputs.

    Otherwise they would run on the client and carry every activation and gradient there and back.
    """

    def device_of(op: Object) -> str:
        device = op.device or (device_fn(op) if device_fn else "")
        if device or tf_compat.is_in_python(op.type):
            return str(device)
        for tensor in op.inputs:
            is_reference = tensor.dtype != tensor.dtype.base_dtype
            if is_reference or tensor.dtype in (tf.resource, tf.variant):
                return str(tensor.op.device)
        return next((str(tensor.op.device) for tensor in op.inputs if tensor.op.device), "")

    return device_of


def _of_core(cluster: Cluster, worker: str, strategy: _Balanced) -> DeviceFunction:
    place: DeviceFunction = tf.train.replica_device_setter(
        ps_tasks=len(cluster.servers), worker_device=worker, ps_strategy=strategy
    )
    return lambda op: cluster.chief if tf_compat.is_in_python(op.type) else place(op)


class _Balanced:
    def __init__(self, num_servers: int) -> None:
        self._bytes = [0] * num_servers

    def __call__(self, op: Object) -> int:
        elements = tf.TensorShape(op.get_attr("shape")).num_elements() or 1
        emptiest = self._bytes.index(min(self._bytes))
        self._bytes[emptiest] += elements * tf.as_dtype(op.get_attr("dtype")).size
        return emptiest
