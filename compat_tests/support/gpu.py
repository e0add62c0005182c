"""A driver with the kernels of GPUs wherever it runs, and where a graph needs a GPU's host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tf2_engine import tf_compat
from tf2_engine.backends import HostDriver
from tf2_engine.backends.host.gpu_kernels import GpuKernels
from tf2_engine.backends.host.kernels import KernelSet
from tf2_engine.plan import Plan

NO_KERNEL_NEEDED = ("Placeholder", "NoOp", "Const", "_Arg", "_Retval")
"""Types of ops that compute nothing; their outputs are where the ops that read them are."""


class GpuDriver(HostDriver):
    """A HostDriver whose steps are those of a machine with a GPU; they run where there is none."""

    def _kernels_for(self, plan: Plan) -> KernelSet:
        return GpuKernels(plan, self._tables)


class Crossing(NamedTuple):
    """A tensor that a step moves between a GPU and its host."""

    producer: str
    consumer: str
    shape: tuple[int | None, ...] | None


def without_kernel(graph: Any) -> list[str]:
    """Returns the types of the ops of a graph for which TensorFlow has no kernel on a GPU."""
    return sorted(
        {
            op.type
            for op in graph.get_operations()
            if op.type not in NO_KERNEL_NEEDED and tf_compat.host_arguments(op) is None
        }
    )


def crossings(graph: Any) -> Iterator[Crossing]:
    """Yields the tensors that a GPU and its host exchange, with all ops but pinned ones on it."""
    for op in graph.get_operations():
        wanted = _host_arguments(op)
        if wanted is None:
            continue
        for tensor, on_host in zip(op.inputs, wanted.inputs, strict=True):
            source = _host_arguments(tensor.op)
            if source is not None and source.outputs[tensor.value_index] != on_host:
                shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
                yield Crossing(tensor.op.type, op.type, shape)


def _host_arguments(op: Any) -> tf_compat.HostArguments | None:
    """Returns which tensors of an op are on the host; None if it runs where its readers run."""
    if op.type in NO_KERNEL_NEEDED:
        return None
    if "CPU" in op.device.upper():
        return tf_compat.HostArguments((True,) * len(op.inputs), (True,) * len(op.outputs))
    return tf_compat.host_arguments(op)
