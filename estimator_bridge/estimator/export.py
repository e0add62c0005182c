"""The names of `tf.compat.v1.estimator.export`."""

from __future__ import annotations

from estimator_bridge.legacy.receivers import (
    ServingInputReceiver,
    TensorServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)
from tf2_engine import tf_compat

# TensorFlow still has the outputs, and its SavedModel code takes no others.
_OUTPUTS = tf_compat.export_output_classes()
ClassificationOutput = _OUTPUTS["ClassificationOutput"]
EvalOutput = _OUTPUTS["EvalOutput"]
ExportOutput = _OUTPUTS["ExportOutput"]
PredictOutput = _OUTPUTS["PredictOutput"]
RegressionOutput = _OUTPUTS["RegressionOutput"]

__all__ = [
    "ClassificationOutput",
    "EvalOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]
