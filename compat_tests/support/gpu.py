"""A driver that uses the kernels for GPUs on any machine, and checks of where graphs run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tf2_engine import tf_compat
from tf2_engine.backends import HostDriver
from tf2_engine.backends.host.gpu_kernels import GpuKernels
from tf2_engine.backends.host.kernels import KernelSet
from tf2_engine.plan import Plan

NO_KERNEL_NEEDED = ("Placeholder", "NoOp", "Const", "_Arg", "_Retval")
"""Types of ops that compute nothing. Their outputs are on the devices of the ops that read them."""


class GpuDriver(HostDriver):
    """A HostDriver that builds the steps for a GPU, also on machines without a GPU."""

    def _kernels_for(self, plan: Plan) -> KernelSet:
        return GpuKernels(plan, self._tables)


class Crossing(NamedTuple):
    """A tensor that a step copies between a GPU and its host."""

    producer: str
    consumer: str
    shape: tuple[int | None, ...] | None


def without_kernel(graph: Any) -> list[str]:
    """Lists the types of a graph's ops for which TensorFlow has no GPU kernel."""
    return sorted(
        {
            op.type
            for op in graph.get_operations()
            if op.type not in NO_KERNEL_NEEDED and host_arguments(op) is None
        }
    )


def crossings(graph: Any) -> Iterator[Crossing]:
    """Yields the tensors that a GPU and its host exchange if only pinned ops are on the host."""
    places = {op.name: _place(op) for op in graph.get_operations()}
    for op in graph.get_operations():
        wanted = places[op.name]
        if wanted is None:
            continue
        for tensor, on_host in zip(op.inputs, wanted.inputs, strict=True):
            source = places[tensor.op.name]
            if source is not None and source.outputs[tensor.value_index] != on_host:
                shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
                yield Crossing(tensor.op.type, op.type, shape)


class HostArguments(NamedTuple):
    """Says for each input and output of an op on a GPU whether it is in host memory."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def _place(op: Any) -> HostArguments | None:
    """Says which tensors of an op are on the host; None if the op runs where its readers run."""
    if op.type in NO_KERNEL_NEEDED:
        return None
    if "CPU" in op.device.upper():
        return HostArguments((True,) * len(op.inputs), (True,) * len(op.outputs))
    return host_arguments(op)


def host_arguments(op: Any) -> HostArguments | None:
    """Says which tensors of an op on a GPU are on the host; None if it has no GPU kernel."""
    # TensorFlow uses kernels for any device if there is none for GPUs.
    for kind, kernel in itertools.product(("GPU", "DEFAULT"), _kernels_of(op.type)):
        if kernel.device_type == kind and _takes(kernel, op):
            names = set(kernel.host_memory_arg)
            return HostArguments(
                _in_host_memory(op.op_def.input_arg, names, op),
                _in_host_memory(op.op_def.output_arg, names, op),
            )
    return None


@functools.cache
def _kernels_of(op_type: str) -> tuple[Any, ...]:
    # TensorFlow serializes the kernels in each call. This takes milliseconds for common ops.
    return tuple(tf_compat.kernels_of(op_type))


def _takes(kernel: Any, op: Any) -> bool:
    for constraint in kernel.constraint:
        value = op.get_attr(constraint.name)
        types = {tf.as_dtype(each) for each in constraint.allowed_values.list.type}
        if not {tf.as_dtype(each) for each in tf.nest.flatten(value)} <= types:
            return False
    return True


def _in_host_memory(arguments: Any, names: set[str], op: Any) -> tuple[bool, ...]:
    flags: list[bool] = []
    for argument in arguments:
        count = 1
        if argument.number_attr:
            count = op.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(op.get_attr(argument.type_list_attr))
        flags += [argument.name in names] * count
    return tuple(flags)
