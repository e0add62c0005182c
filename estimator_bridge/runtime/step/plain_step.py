"""Builds steps with use_tpu=False: the model as an ordinary Estimator runs it."""

from __future__ import annotations

import dataclasses

from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.input.feeding import read_batch
from estimator_bridge.runtime.program_types import Batch, CallModel, Hook, LookUp, ReadInput
from estimator_bridge.runtime.step.host_calls import call_with_all_cores
from estimator_bridge.runtime.step.model_step import ModelStep, check_spec, step_of_spec


def build_plain_step(
    mode: str, input_fn: ReadInput, model_fn: CallModel, look_up: LookUp | None = None
) -> ModelStep:
    """Builds a step in the default graph.

    Args:
        look_up: applied to the features before the model gets them; None leaves them as they are.
    """
    (features, labels), hooks = read_batch(input_fn)
    if mode == ModeKeys.PREDICT:
        labels = None
    return trace_step(mode, (features, labels), hooks, model_fn, look_up)


def trace_step(
    mode: str, batch: Batch, input_hooks: list[Hook], model_fn: CallModel, look_up: LookUp | None
) -> ModelStep:
    """Calls the model_fn on a batch and returns the step that it describes."""
    features, labels = batch
    if look_up is not None:
        features = look_up(features)
    spec = model_fn(features, labels)
    check_spec(mode, spec)
    step = step_of_spec(
        mode, spec, input_hooks, lambda field: call_with_all_cores(field, [getattr(spec, field)])
    )
    chief_hooks = getattr(spec, "training_chief_hooks", None) or ()
    return dataclasses.replace(step, chief_hooks=tuple(chief_hooks))
