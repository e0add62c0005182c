"""Describes how the tables of a spec are updated, and records values that change with the step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.recording.files import RuleDescription
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.translation import on_sparse_cores
from estimator_bridge.translation.translate import translate
from tf2_engine.keras.columns import ByStep
from tf2_engine.optimizers import Optimizer
from tf2_engine.types import TensorLike

_Function = Callable[[], TensorLike]


def rules_of(
    legacy: LegacySpec, steps: Sequence[int], arithmetic: str = "tpu"
) -> dict[str, RuleDescription]:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])

        def numbers(function: _Function) -> list[float] | None:
            try:
                value = tf.cast(function(), tf.float32)
                return [float(session.run(value, {step: number})) for number in steps]
            except Exception:  # the function may need anything from its own graph
                return None

        try:
            spec = translate(legacy, training=True, step=lambda: step)
            if arithmetic == "sparsecore":
                spec = on_sparse_cores.engine_spec(spec)
        except errors.EngineError:  # only stock can train it
            return {}
        factor = legacy.experimental_gradient_multiplier_fn
        multipliers = [] if factor is None else numbers(functools.partial(factor, step))
        rules: dict[str, RuleDescription] = {}
        for table in spec.tables:
            assert table.name is not None and table.optimizer is not None
            rate = table.optimizer.learning_rate
            rates = numbers(rate) if callable(rate) else _constant_rates(rate, len(steps))
            if rates is not None and multipliers is not None:
                rules[table.name] = _rule(table.optimizer, rates, multipliers)
        return rules


def rule_of(optimizer: Optimizer, steps: Sequence[int]) -> RuleDescription | None:
    rate = optimizer.learning_rate
    if isinstance(rate, ByStep):
        rates = [float(np.float32(rate.at(tf.constant(step, tf.int64)))) for step in steps]
    elif callable(rate):
        return None
    else:
        rates = _constant_rates(rate, len(steps))
    return _rule(optimizer, rates, [])


def _constant_rates(rate: float, steps: int) -> list[float]:
    return [float(np.float32(rate))] * steps


def _rule(optimizer: Optimizer, rates: list[float], multipliers: list[float]) -> RuleDescription:
    settings = {
        field.name: getattr(optimizer, field.name) for field in dataclasses.fields(optimizer)
    }
    del settings["learning_rate"], settings["slot_variable_creation_fn"]
    return {
        "kind": type(optimizer).__name__,
        "settings": settings,
        "rates": rates,
        "multipliers": multipliers,
    }
