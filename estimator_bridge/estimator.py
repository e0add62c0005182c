"""The names of `tf.compat.v1.estimator`, for programs that use TPUs.

from estimator_bridge import estimator as tf_estimator
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge import tpu
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys

# TensorFlow still has the hooks; the estimator namespace was only another name for them.
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

__all__ = [
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "EstimatorSpec",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
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
    "tpu",
]
