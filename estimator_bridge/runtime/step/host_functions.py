"""Calls the functions of a spec that run on the host: `host_call` and `eval_metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import call_host_fn
from estimator_bridge.runtime.program_types import ModelSpec
from tf2_engine import tf_compat
from tf2_engine.types import Graph, Nest, Op, Tensor, Variable

_V1_SUMMARIES = {
    *("AudioSummary", "AudioSummaryV2", "HistogramSummary", "ImageSummary"),
    *("MergeSummary", "ScalarSummary", "TensorSummary", "TensorSummaryV2"),
}
_ASSIGNMENTS = {
    *("Assign", "AssignAdd", "AssignSub"),
    *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"),
}


def call_on_host(field: str, specs: Sequence[ModelSpec], on_engine: bool) -> Nest:
    """Calls the function in a field of the specs, that of core 0, with the tensors of all.

    Tensors that are computed from the global step are of the step before it is counted up, as on a
    TPU, which hands them out before.
    """
    function, tensors = getattr(specs[0], field)
    if len(specs) > 1:
        per_core = [getattr(spec, field)[1] for spec in specs]
        if isinstance(tensors, Mapping):
            tensors = {k: _joined(field, k, [core[k] for core in per_core]) for k in tensors}
        else:
            columns = enumerate(zip(*per_core, strict=True))
            tensors = [_joined(field, position, column) for position, column in columns]
    graph = tf.get_default_graph()
    tensors = _read_before_counting(tensors, graph)
    before = len(graph.get_operations())
    result = call_host_fn((function, tensors))
    for op in graph.get_operations()[before:]:
        if on_engine and op.type in _V1_SUMMARIES:
            raise errors.InvalidInput(
                f"{field}: tf.compat.v1.summary has no effect here (op {op.name!r}). Use "
                "tf.compat.v2.summary with a writer of its own."
            )
    return result


def _joined(field: str, key: str | int, tensors: Sequence[Tensor]) -> Tensor:
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if values[0].shape.rank == 0:
        raise errors.InvalidInput(
            f"TPUEstimatorSpec.{field}[1][{key!r}] is a scalar; the tensors of {len(values)} cores "
            "are concatenated along their first axis. Give it one: tf.reshape(value, [1])."
        )
    return tf.concat(values, 0)


def _read_before_counting(tensors: Nest, graph: Graph) -> Nest:
    """Returns the tensors; for those of the global step copies, for which its update waits.

    Nothing else orders the two, which run in one call of the session: a summary that is written
    every N steps would come twice, or not at all.
    """
    variable = tf.train.get_global_step(graph)
    ops = graph.get_operations() if variable is not None else []
    updates = [op for op in ops if op.type in _ASSIGNMENTS and _is_of(op, variable)]
    # The variable's own initialization is no step.
    updates = [op for op in updates if op is not variable.initializer]
    if not updates:
        return tensors

    def read(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, tf.Tensor) or not _is_number(tensor):
            return tensor
        ancestors = set(_ancestors(tensor.op))
        if variable.op not in ancestors or ancestors.intersection(updates):
            return tensor
        # Variables without a resource are updated in place: what is read would change.
        copied = tf.raw_ops.DeepCopy(x=tensor)
        for update in updates:
            tf_compat.run_after(update, copied.op)
        return copied

    return tf.nest.map_structure(read, tensors)


def _is_number(tensor: Tensor) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_integer)


def _is_of(op: Op, variable: Variable) -> bool:
    """Returns whether an op updates a variable: whether that is its first input."""
    return op.inputs[0].op is variable.op


def _ancestors(op: Op) -> Iterator[Op]:
    """Yields an op and all that run before it in a step."""
    seen, waiting = {op}, [op]
    while waiting:
        each = waiting.pop()
        yield each
        before = {*(tensor.op for tensor in each.inputs), *each.control_inputs} - seen
        seen |= before
        waiting += before
