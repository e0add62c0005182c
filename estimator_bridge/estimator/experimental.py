"""The names of `tf.compat.v1.estimator.experimental`, and of tf.data's for estimators."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge.hooks.early_stopping import (
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from estimator_bridge.hooks.in_memory_evaluator import InMemoryEvaluatorHook
from estimator_bridge.hooks.input_pipeline import CheckpointInputPipelineHook
from estimator_bridge.hooks.stop_at_checkpoint import make_stop_at_checkpoint_step_hook
from estimator_bridge.legacy.receivers import build_raw_supervised_input_receiver_fn
from estimator_bridge.run import unsupported

__all__ = [
    "CheckpointInputPipelineHook",
    "InMemoryEvaluatorHook",
    "build_raw_supervised_input_receiver_fn",
    "make_early_stopping_hook",
    "make_saveable_from_iterator",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]

make_saveable_from_iterator = tf.data.experimental.make_saveable_from_iterator

__getattr__ = unsupported.refuse("tf.estimator.experimental", unsupported.EXPERIMENTAL)
