"""Exports of graphs: detects an export in progress, and creates export outputs and signatures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.saved_model import save_context as _save_context
from tensorflow.python.saved_model.model_utils import export_output as _export_output
from tensorflow.python.saved_model.model_utils import export_utils as _export_utils

from tf2_engine.types import Message, Nest, Object


def in_saved_model_export() -> bool:
    """Whether a function is traced for a SavedModel, which cannot contain queues and drivers."""
    return not tf.executing_eagerly() and bool(_save_context.in_save_context())


def saved_model_export() -> contextlib.AbstractContextManager[None]:
    context: contextlib.AbstractContextManager[None] = _save_context.save_context(
        tf.saved_model.SaveOptions()
    )
    return context


export_outputs: Callable[[Object, Nest], dict[str, Object]] = _export_utils.get_export_outputs
"""Checks a model's export outputs; if there are none, creates one from the predictions."""


def export_output_classes() -> dict[str, type]:
    names = ("ExportOutput", "ClassificationOutput", "RegressionOutput", "PredictOutput")
    return {name: getattr(_export_output, name) for name in (*names, "EvalOutput")}


def signature_defs(mode: str, spec: Object, receiver: Object) -> dict[str, Message]:
    """Maps names to the signatures of an exported graph, as stock's estimators do.

    `mode` is "train", "eval" or "infer". `receiver` has `receiver_tensors`, and optionally
    `receiver_tensors_alternatives`.
    """
    outputs = _export_utils.export_outputs_for_mode(
        mode=mode,
        serving_export_outputs=spec.export_outputs,
        predictions=spec.predictions,
        loss=spec.loss,
        metrics=spec.eval_metric_ops,
    )
    signatures = _export_utils.build_all_signature_defs(
        receiver.receiver_tensors,
        outputs,
        getattr(receiver, "receiver_tensors_alternatives", None),
        serving_only=mode == "infer",
    )
    return dict(signatures)
