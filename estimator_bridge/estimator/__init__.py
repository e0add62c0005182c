"""The names of `tf.compat.v1.estimator`, for programs that use TPUs.

from estimator_bridge import estimator as tf_estimator
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge.estimator import experimental, export, inputs, tpu
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from estimator_bridge.legacy.exporters import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
)
from estimator_bridge.legacy.parsing_specs import (
    classifier_parse_example_spec,
    regressor_parse_example_spec,
)
from estimator_bridge.legacy.train_and_eval_specs import EvalSpec, TrainSpec
from estimator_bridge.legacy.warm_start import WarmStartSettings
from estimator_bridge.run import unsupported
from estimator_bridge.runtime.loop.train_and_evaluate import train_and_evaluate

# TensorFlow still has these; the estimator namespace was only another name for them.
CheckpointSaverHook = tf.train.CheckpointSaverHook
CheckpointSaverListener = tf.train.CheckpointSaverListener
FeedFnHook = tf.train.FeedFnHook
FinalOpsHook = tf.train.FinalOpsHook
GlobalStepWaiterHook = tf.train.GlobalStepWaiterHook
LoggingTensorHook = tf.train.LoggingTensorHook
NanLossDuringTrainingError = tf.train.NanLossDuringTrainingError
NanTensorHook = tf.train.NanTensorHook
ProfilerHook = tf.train.ProfilerHook
SecondOrStepTimer = tf.train.SecondOrStepTimer
SessionRunArgs = tf.train.SessionRunArgs
SessionRunContext = tf.train.SessionRunContext
SessionRunHook = tf.train.SessionRunHook
SessionRunValues = tf.train.SessionRunValues
StepCounterHook = tf.train.StepCounterHook
StopAtStepHook = tf.train.StopAtStepHook
SummarySaverHook = tf.train.SummarySaverHook
VocabInfo = tf.train.VocabInfo

__all__ = [
    "BestExporter",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FeedFnHook",
    "FinalExporter",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LatestExporter",
    "LoggingTensorHook",
    "ModeKeys",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "RunConfig",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "classifier_parse_example_spec",
    "experimental",
    "export",
    "inputs",
    "regressor_parse_example_spec",
    "tpu",
    "train_and_evaluate",
]

_refuse = unsupported.refuse("tf.estimator", unsupported.ESTIMATOR)


def __getattr__(name: str) -> Any:
    if name == "Estimator":
        return importlib.import_module(
            "estimator_bridge.runtime.estimator.base_estimator"
        ).Estimator
    return _refuse(name)
