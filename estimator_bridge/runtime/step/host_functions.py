"""Calls the functions of a spec that run on the host: `host_call` and `eval_metrics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.host_calls import call_host_fn
from estimator_bridge.runtime.program_types import ModelSpec
from tf2_engine.types import Nest, Tensor

_V1_SUMMARIES = {
    *("AudioSummary", "AudioSummaryV2", "HistogramSummary", "ImageSummary"),
    *("MergeSummary", "ScalarSummary", "TensorSummary", "TensorSummaryV2"),
}


def call_on_host(field: str, specs: Sequence[ModelSpec], on_engine: bool) -> Nest:
    """Calls the host function of core 0's spec with the tensors of all cores.

    Raises:
        InvalidInput: a tensor is a scalar although there are several cores; or, with `on_engine`,
            the function makes summaries, which nothing would write.
    """
    function, tensors = getattr(specs[0], field)
    if len(specs) > 1:
        where = f"TPUEstimatorSpec.{field}[1]"
        tensors = join_cores(where, [getattr(spec, field)[1] for spec in specs])
    graph = tf.get_default_graph()
    before = len(graph.get_operations())
    result = call_host_fn((function, tensors))
    for op in graph.get_operations()[before:]:
        if on_engine and op.type in _V1_SUMMARIES:
            raise errors.InvalidInput(
                f"{field}: tf.compat.v1.summary has no effect here (op {op.name!r}). Use "
                "tf.compat.v2.summary with a writer of its own."
            )
    return result


def join_cores(where: str, per_core: Sequence[Nest]) -> Nest:
    """Concatenates the tensors of all cores along their first axis.

    Raises InvalidInput for a scalar; the message begins with `where`.
    """
    first = per_core[0]
    if isinstance(first, Mapping):
        return {
            key: _joined(f"{where}[{key!r}]", [core[key] for core in per_core]) for key in first
        }
    if isinstance(first, (list, tuple)):
        columns = enumerate(zip(*per_core, strict=True))
        return [_joined(f"{where}[{position}]", column) for position, column in columns]
    return _joined(where, per_core)


def _joined(where: str, tensors: Sequence[Tensor]) -> Tensor:
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if values[0].shape.rank == 0:
        raise errors.InvalidInput(
            f"{where} is a scalar; the tensors of {len(values)} cores are concatenated along their "
            "first axis. Give it one: tf.reshape(value, [1])."
        )
    return tf.concat(values, 0)
