"""The update that waits for the next batch: pipelined execution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.backends.host.batch_queue import (
    Batch,
    Fifo,
    batch_dtypes,
    pack,
    take_from_all,
    unpack,
)
from tf2_engine.backends.host.kernels import KernelSet
from tf2_engine.backends.interface import PerCore
from tf2_engine.graph_mode import run_after, run_if
from tf2_engine.plan import Plan
from tf2_engine.types import Op, Tensor

Apply = Callable[[Batch, PerCore, Sequence[Tensor]], Op]
"""Updates the tables with a batch, its gradients and the learning rates; returns the op."""


class PendingUpdate:
    """At most one update, with its batch, gradients and rates, as a resource.

    Args:
        apply: applies an update.
    """

    def __init__(self, plan: Plan, kernels: KernelSet, apply: Apply) -> None:
        self._plan = plan
        self._kernels = kernels
        self._apply = apply
        gradients = [tf.float32] * (len(plan.features) * plan.num_cores)
        rates = [tf.float32] * len(plan.dynamic_rates)
        self._fifo = Fifo(batch_dtypes(plan) + gradients + rates, "pending")

    def put(self, batch: Batch, gradients: PerCore, rates: Sequence[Tensor]) -> Op:
        """Applies the update that is pending and leaves another one pending; returns the op."""
        flat = [gradient for core in gradients for gradient in core]
        # One update is pending at a time, also when batches overlap.
        with run_after([self.flush()]):
            return self._fifo.put([*pack(self._plan, batch, self._kernels), *flat, *rates])

    def flush(self) -> Op:
        """Applies the pending update, if there is one; returns the op."""
        return run_if(self._fifo.some(), self._apply_pending)

    def drop(self) -> Op:
        """Drops the pending update, if there is one; returns the op."""
        return run_if(self._fifo.some(), lambda: self._take()[0])

    def _take(self) -> list[Tensor]:
        (tensors,) = take_from_all([self._fifo], lambda: errors.OutOfOrder("No update is pending."))
        return tensors

    def _apply_pending(self) -> Op:
        plan, tensors = self._plan, self._take()
        size = len(batch_dtypes(plan))
        batch = unpack(plan, tensors[:size], plan.num_cores)
        width = len(plan.features)
        end = size + width * plan.num_cores
        gradients = [tensors[start : start + width] for start in range(size, end, width)]
        for core in gradients:
            for gradient, feature in zip(core, plan.features, strict=True):
                gradient.set_shape([*feature.output_shape, feature.table.dim])
        return self._apply(batch, gradients, tensors[end:])
