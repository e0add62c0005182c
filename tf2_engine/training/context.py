"""`ReplicaContext`, which describes the replicas to a program as `params["context"]`."""

from __future__ import annotations

from tf2_engine import errors
from tf2_engine.types import Strategy

_HOST = "/replica:0/task:0/device:CPU:0"


class ReplicaContext:
    """The replicas of a strategy, seen as one host, with the methods of stock's TPUContext.

    Attributes:
        num_replicas, num_of_replicas_per_host: the number of replicas.
        num_hosts: 1.
        current_host: 0.
        device_assignment: None, because each replica has one core.
    """

    num_hosts = 1
    current_host = 0
    device_assignment = None

    def __init__(self, strategy: Strategy) -> None:
        self.num_replicas = self.num_of_replicas_per_host = int(strategy.num_replicas_in_sync)

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Describes the call of the input_fn; there is one call for all replicas.

        Returns:
            The device of the host, the index of this call (0), the number of calls (1), and the
                number of replicas.
        """
        return _HOST, 0, 1, self.num_replicas

    def device_for_replica(self, replica_id: int) -> tuple[str, int]:
        """Returns the device of a replica's host, and the replica's position on the host."""
        if not 0 <= replica_id < self.num_replicas:
            raise errors.InvalidInput(
                f"There is no replica {replica_id}; the strategy has {self.num_replicas}."
            )
        return _HOST, replica_id

    def tpu_host_placement_function(self, host_id: int = 0) -> str:
        """Returns the device of the host; `host_id` has no effect."""
        return _HOST
