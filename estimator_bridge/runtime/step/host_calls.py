"""Calls `eval_metrics` and `host_call` of a TPUEstimatorSpec with the tensors of all cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import HostCall, call_host_fn
from tf2_engine.types import Nest, Tensor

_V1_SUMMARIES = {
    *("AudioSummary", "AudioSummaryV2", "HistogramSummary", "ImageSummary"),
    *("MergeSummary", "ScalarSummary", "TensorSummary", "TensorSummaryV2"),
}


def call_with_all_cores(
    field: str, per_core: Sequence[HostCall], *, no_v1_summaries: bool = False
) -> Nest:
    """Calls a function with its tensors, those of several cores concatenated along axis 0.

    Args:
        field: the field of the spec, for messages.
        per_core: the pair (function, tensors) of each core's spec; core 0's function is called.
        no_v1_summaries: refuses summaries that nothing would write, as stock does beside a TPU.

    Raises:
        InvalidInput: with several cores a tensor is a scalar, which cannot be concatenated; or the
            function makes a summary that it may not make.
    """
    function, tensors = per_core[0]
    if len(per_core) > 1:
        tensors = _joined(field, [tensors for _, tensors in per_core])
    graph = tf.get_default_graph()
    before = len(graph.get_operations())
    result = call_host_fn((function, tensors))
    if no_v1_summaries:
        for op in graph.get_operations()[before:]:
            if op.type in _V1_SUMMARIES:
                raise errors.InvalidInput(
                    f"{field}: tf.compat.v1.summary has no effect here (op {op.name!r}). Use "
                    "tf.compat.v2.summary with a writer of its own."
                )
    return result


def _joined(field: str, per_core: Sequence[Nest]) -> Nest:
    if isinstance(per_core[0], Mapping):
        return {
            key: _concatenated(f"{field}[1][{key!r}]", [core[key] for core in per_core])
            for key in per_core[0]
        }
    return [
        _concatenated(f"{field}[1][{position}]", tensors)
        for position, tensors in enumerate(zip(*per_core, strict=True))
    ]


def _concatenated(where: str, tensors: Sequence[Tensor]) -> Tensor:
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if values[0].shape.rank == 0:
        raise errors.InvalidInput(
            f"TPUEstimatorSpec.{where} is a scalar; the tensors of {len(values)} cores are "
            "concatenated along their first axis. Give it one: tf.reshape(value, [1])."
        )
    return tf.concat(values, 0)
