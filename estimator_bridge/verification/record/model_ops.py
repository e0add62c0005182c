"""Records a sketch of the value of every op of a model, to find the first op that differs.

The sketch of a flattened output x is Σ cos(i + 1) x[i], with √(Σ x[i]²) as its scale. These two
numbers change if x is multiplied by a factor, and if a single element changes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.recording.files import MODEL_OPS
from estimator_bridge.run import program_lines
from estimator_bridge.verification.record.capture import Capture, with_signature_of
from tf2_engine.types import Array, Function, Graph, Object, Op

SKETCH = "sketch"
"""The name under which a recorded step contains the sketches, [ops, 2] float64."""

# Running these ops more often than the model does would change its results.
_WRITES = ("Assign", "ResourceApply", "Apply", "Scatter", "ResourceScatter", "Iterator", "Print")
_BRANCHES, _JOINS = ("Switch", "RefSwitch", "Enter", "RefEnter"), ("Merge", "RefMerge", "Exit")
_MAX_OPS = 5000


class ModelOp(NamedTuple):
    """An op of a model: its name, type, and the line of the program that created it."""

    name: str
    kind: str
    source: str


def sketching_model_fn(
    model_fn: Function,
    capture: Capture,
    is_training: Callable[[], bool],
    describe: Callable[[Sequence[ModelOp]], None],
) -> Function:
    @functools.wraps(model_fn)
    def call(*args: Object, **kwargs: Object) -> Object:
        graph = tf.get_default_graph()
        before = len(graph.get_operations())
        spec = model_fn(*args, **kwargs)
        if not is_training() or spec.loss is None:
            return spec
        tensors = _outputs(graph, before, spec.loss)
        describe([_described(tensor) for tensor in tensors])
        sketch = tf.numpy_function(_sketch, tensors, tf.float64)
        with tf.control_dependencies([capture.tensor(MODEL_OPS, SKETCH, sketch)]):
            return spec._replace(loss=tf.identity(spec.loss))

    return with_signature_of(model_fn, call)


def _outputs(graph: Graph, before: int, loss: Object) -> list[Object]:
    """Lists the float outputs on which the loss, and updates such as moving averages, depend.

    It leaves out ops inside branches, ops that depend on a write, and reference variables.
    """
    tensors: list[Object] = []
    left_out: set[str] = set()
    used = _used_by([loss.op, *graph.get_collection(tf.GraphKeys.UPDATE_OPS)])
    for op in graph.get_operations()[before:]:
        if _is_left_out(op, left_out):
            left_out.add(op.name)
        elif op.name in used and not _is_of_reference(op):
            tensors.extend(each for each in op.outputs if each.dtype.is_floating)
        if op is loss.op:
            break
    return tensors[:_MAX_OPS]


def _used_by(ops: Iterable[Object]) -> set[str]:
    names: set[str] = set()
    waiting: list[Op] = [getattr(each, "op", each) for each in ops]
    while waiting:
        op: Op = waiting.pop()
        if op.name not in names:
            names.add(op.name)
            waiting.extend(tensor.op for tensor in op.inputs)
    return names


def _is_left_out(op: Op, left_out: set[str]) -> bool:
    if op.type.startswith(_WRITES) or op.type in _BRANCHES:
        return True
    if op.type in _JOINS:
        return False
    sources = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return any(source.name in left_out for source in sources)


def _is_of_reference(op: Op) -> bool:
    """Whether an op's output is the memory of a variable, which training may change meanwhile."""
    is_read = op.type == "Identity"
    tensors = [*op.outputs, *(op.inputs if is_read else ())]
    return any(tensor.dtype != tensor.dtype.base_dtype for tensor in tensors)


def _described(tensor: Object) -> ModelOp:
    number = tensor.name.rpartition(":")[2]
    name = tensor.op.name if number == "0" else tensor.name
    return ModelOp(name, tensor.op.type, _source(tensor.op))


def _source(op: Op) -> str:
    for frame in reversed(list(op.traceback or ())):
        filename, number = frame[0], frame[1]
        if program_lines.is_of_program(filename):
            return f"{os.path.basename(filename)}, line {number}"
    return ""


def _sketch(*values: Array) -> Array:
    sketches = np.zeros([len(values), 2])
    with np.errstate(over="ignore", invalid="ignore"):
        for sketch, value in zip(sketches, values, strict=True):
            flat = np.ravel(value).astype(np.float64)
            sketch[:] = np.cos(np.arange(1, flat.size + 1)) @ flat, np.sqrt(flat @ flat)
    return sketches
