"""Places ops in a cluster: each core's on its worker, variables of the model on the servers.

The tables are not placed here: the engine's driver does that, and all that it adds to a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.tasks import Cluster
from tf2_engine import tf_compat
from tf2_engine.types import Object

DeviceFunction = Callable[[Object], str]
"""Returns the device of an op that is being made."""


def core_devices(cluster: Cluster, workers: Sequence[str]) -> tuple[DeviceFunction, ...]:
    """Returns for each core, which runs on one of the `workers`, where the ops of its model are.

    Variables go to the parameter server that has the fewest bytes of them; they are made once, by
    the first core, whose worker would hold and serve them all otherwise. Python functions are known
    to the chief alone.
    """
    strategy = _Balanced(len(cluster.servers))
    return tuple(_of_core(cluster, worker, strategy) for worker in workers)


def following(device_fn: DeviceFunction | None) -> DeviceFunction:
    """Returns a device function that puts ops without a device beside their inputs.

    What has no device runs on the client: identities and reshapes between the parts of a step would
    carry every activation and gradient there and back. An op on a resource stays with that.
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
    """Chooses the parameter server of each variable: the one with the fewest bytes."""

    def __init__(self, num_servers: int) -> None:
        self._bytes = [0] * num_servers

    def __call__(self, op: Object) -> int:
        elements = tf.TensorShape(op.get_attr("shape")).num_elements() or 1
        emptiest = self._bytes.index(min(self._bytes))
        self._bytes[emptiest] += elements * tf.as_dtype(op.get_attr("dtype")).size
        return emptiest
