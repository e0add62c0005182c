"""The cores of a TPU with SparseCores, as an engine's calls reach them."""

from __future__ import annotations

from tf2_engine import errors
from tf2_engine.backends.tpu.cores import TpuCores


class SparseCoreCores(TpuCores):
    """The cores of a TPUStrategy, each of which reads its own ids.

    The ids reach the lookup as tensors, not through a queue, so both calls belong inside
    `strategy.run`.
    """

    _queues_batches = False
    _inside = (
        "SparseCores have no queue of batches: call `enqueue`, `dequeue` and `apply_gradients` "
        "inside the function that `strategy.run` runs, with its arguments."
    )

    def initialized(self) -> bool | None:
        return False

    def core_of(self, device: str) -> int:
        raise errors.InvalidInput(
            f"`device`={device!r}: SparseCores take the ids of a core inside of `strategy.run` "
            "only; leave it out."
        )
