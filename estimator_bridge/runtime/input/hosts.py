"""Places each host's input on the device of the host, unless the input calls Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.program_types import Batch, RunContext, RunValues
from tf2_engine import tf_compat
from tf2_engine.types import Graph, Nest, Tensor

THIS_PROCESS: Final = "/device:CPU:0"
"""The only host of a job without a cluster, or of a cluster whose chief reads all input."""

NotifyOfPython: TypeAlias = Callable[[Sequence[str], int], None]
"""Is called with the names of the ops that call Python, and the number of bytes that a step
reads.
"""

_Result = TypeVar("_Result")


def make_on(host: str, make: Callable[[], _Result]) -> tuple[_Result, list[str]]:
    """Calls a function that creates ops, and places the ops on a host's device.

    If some of the ops call Python, all ops stay in this process; the names of those that call
    Python are returned too.
    """
    graph = tf.get_default_graph()
    num_ops = len(graph.get_operations())
    with tf.device(_placing(graph, host)):
        result = make()
    if host == THIS_PROCESS:
        return result, []
    ops = graph.get_operations()[num_ops:]
    in_python = tf_compat.ops_in_python(ops)
    if in_python:
        tf_compat.move_ops(ops, host, THIS_PROCESS)
    return result, in_python


def _placing(graph: Graph, host: str) -> Callable[[tf.Operation], str]:
    """Makes a device function for a host. Ops in a dataset's functions run where the dataset is."""
    of_host = tf.DeviceSpec.from_string(host)

    def place(op: tf.Operation) -> str:
        if op.graph is not graph:
            return str(op.device)
        return str(of_host.make_merged_spec(tf.DeviceSpec.from_string(op.device)).to_string())

    return place


def wait_for_each_other(batches: Sequence[Batch]) -> list[Batch]:
    tensors = [tensor for batch in batches for tensor in _tensors(batch)]
    ready = tf.group(*tensors)

    def wait(leaf: Nest) -> Nest:
        if leaf is None:
            return None
        with tf.control_dependencies([ready]):
            return tf.nest.map_structure(tf.identity, leaf, expand_composites=True)

    return [tf.nest.map_structure(wait, batch) for batch in batches]


class PythonInputHook(tf.train.SessionRunHook):
    """Reports, after the first session call, how many bytes this process reads for all hosts."""

    def __init__(
        self, in_python: Sequence[str], batches: Sequence[Batch], notify: NotifyOfPython
    ) -> None:
        self._in_python, self._batches, self._notify = in_python, batches, notify
        self._is_done = False

    def begin(self) -> None:
        counts = [_num_bytes(tensor) for batch in self._batches for tensor in _tensors(batch)]
        self._num_bytes = tf.add_n(counts)

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs | None:
        return None if self._is_done else tf.train.SessionRunArgs(self._num_bytes)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        if not self._is_done:
            self._is_done = True
            self._notify(self._in_python, int(run_values.results))


def _tensors(batch: Batch) -> Iterator[Tensor]:
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if leaf is not None:
            yield tf.convert_to_tensor(leaf)


def _num_bytes(tensor: Tensor) -> Tensor:
    if tensor.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(tensor), tf.int64))
    return tf.size(tensor, out_type=tf.int64) * tensor.dtype.size
