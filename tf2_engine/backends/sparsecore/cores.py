"""The cores of a TPU with SparseCores, as an engine's calls reach them."""

from __future__ import annotations

from tf2_engine import errors, tf_compat
from tf2_engine.backends.interface import EngineCall, Value
from tf2_engine.backends.tpu.cores import TpuCores
from tf2_engine.types import Nest


class SparseCoreCores(TpuCores):
    """The cores of a TPUStrategy, each of which reads its own ids.

    The ids reach the lookup as tensors, not through a queue, so both calls belong inside
    `strategy.run`.
    """

    def call(self, call: EngineCall[Value]) -> Nest:
        if tf_compat.tpu_computation_graph() is None:
            raise errors.OutOfOrder(
                f"`{call.name}` is called outside of `strategy.run`. SparseCores have no queue of "
                "batches: call `enqueue`, `dequeue` and `apply_gradients` inside the function that "
                "`strategy.run` runs, with its arguments."
            )
        return super().call(call)

    def core_of(self, device: str) -> int:
        raise errors.InvalidInput(
            f"`device`={device!r}: SparseCores take the ids of a core inside of `strategy.run` "
            "only; leave it out."
        )
