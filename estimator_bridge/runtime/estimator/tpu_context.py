"""Defines `params["context"]`, which tells a program's functions for which cores they run."""

from __future__ import annotations

from collections.abc import Callable

from estimator_bridge import errors
from estimator_bridge.legacy.run_config import InputPipelineConfig
from estimator_bridge.runtime.input.feeding import CoreLayout
from estimator_bridge.runtime.input.hosts import THIS_PROCESS
from tf2_engine.types import Object

_HOST = "/replica:0/task:0/device:CPU:0"
_HOST_OF_REPLICA = "/task:0/device:CPU:0"  # stock shortens the device in the same way


class TPUContext:
    """Describes the emulated cores of a job, on one host or on the workers of a cluster.

    `host_was_asked_for` is True once an input_fn has asked which host calls it.

    Args:
        input_fn_call: the zero-based index of this call of the input_fn. None for a model_fn.
        device_assignment: a function that computes the cores of each replica, in jobs with model
            parallelism.
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
        """Tells an input_fn how it is called; raises WrongCaller in a model_fn.

        Returns:
            The device of the host, the zero-based index of this call, how many calls there are, and
            how many replicas use the result.
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
        """The cores of each replica, a `tf.tpu.experimental.DeviceAssignment`.

        None in jobs without model parallelism. Raises WrongCaller in an input_fn.
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
                f"There is no host {host_id!r}; the last of {self.num_hosts} host(s) is "
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
