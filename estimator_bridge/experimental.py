"""The names of `tf.compat.v1.estimator.experimental`."""

from __future__ import annotations

from estimator_bridge import left_out
from estimator_bridge.hooks.early_stopping import (
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from estimator_bridge.hooks.in_memory_evaluator import InMemoryEvaluatorHook
from estimator_bridge.hooks.stop_at_checkpoint import make_stop_at_checkpoint_step_hook
from estimator_bridge.legacy.receivers import build_raw_supervised_input_receiver_fn

__all__ = [
    "InMemoryEvaluatorHook",
    "build_raw_supervised_input_receiver_fn",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]

__getattr__ = left_out.refuse("tf.estimator.experimental", left_out.EXPERIMENTAL)
