"""The optimizers: one row says what becomes of each legacy one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from estimator_bridge.legacy.checks import class_names
from tf2_engine import optimizers


@dataclasses.dataclass(frozen=True)
class Row:
    """What becomes of one legacy optimizer.

    Attributes:
        engine: the engine's class.
        renamed: the engine's name of each legacy setting of its own; the shared settings are in
            `SHARED_SETTINGS`.
        slots: for each slot of the engine, what follows the table's name in the name of a legacy
            TPU checkpoint, as in `<table>/Adam/m`.
        only: legacy settings without a counterpart, and the one value that each may have.
        for_columns: whether a spec with `feature_columns` may have it.
    """

    engine: type[optimizers.Optimizer]
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    for_columns: bool = True


SHARED_SETTINGS: Mapping[str, str] = {
    name: name
    for name in (
        "learning_rate",
        "use_gradient_accumulation",
        "clip_weight_min",
        "clip_weight_max",
        "weight_decay_factor",
        "multiply_weight_decay_factor_by_learning_rate",
        "clip_gradient_min",
        "clip_gradient_max",
    )
}
"""The engine's name of each setting that all legacy optimizers have."""

OPTIMIZERS: Mapping[str, Row] = {
    "AdagradParameters": Row(
        optimizers.Adagrad,
        {"initial_accumulator": "initial_accumulator_value"},
        {"accumulators": "Adagrad"},
    ),
    "AdamParameters": Row(
        optimizers.Adam,
        {
            "beta1": "beta_1",
            "beta2": "beta_2",
            "epsilon": "epsilon",
            "lazy_adam": "lazy_adam",
            "sum_inside_sqrt": "sum_inside_sqrt",
        },
        {"momenta": "Adam/m", "velocities": "Adam/v"},
    ),
    "StochasticGradientDescentParameters": Row(optimizers.SGD),
    "ProximalAdagradParameters": Row(
        optimizers.ProximalAdagrad,
        {
            "initial_accumulator": "initial_accumulator_value",
            "l1_regularization_strength": "l1_regularization_strength",
            "l2_regularization_strength": "l2_regularization_strength",
        },
        {"accumulators": "ProximalAdagrad"},
    ),
    "FtrlParameters": Row(
        optimizers.FTRL,
        {
            "learning_rate_power": "learning_rate_power",
            "initial_accumulator_value": "initial_accumulator_value",
            "l1_regularization_strength": "l1_regularization_strength",
            "l2_regularization_strength": "l2_regularization_strength",
            "multiply_linear_by_learning_rate": "multiply_linear_by_learning_rate",
            "beta": "beta",
            "allow_zero_accumulator": "allow_zero_accumulator",
        },
        {"accumulators": "Ftrl", "linears": "Ftrl_1"},
        # Not an argument of stock's class, but an attribute that a program may change.
        only={"initial_linear_value": 0.0},
    ),
    "MomentumParameters": Row(
        optimizers.Momentum,
        {"momentum": "momentum", "use_nesterov": "use_nesterov"},
        {"momenta": "Momentum"},
    ),
    "RMSPropParameters": Row(
        optimizers.RMSProp,
        {"rho": "rho", "momentum": "momentum", "epsilon": "epsilon"},
        {"ms": "RMSProp/ms", "mom": "RMSProp/mom"},
    ),
    "AdagradMomentumParameters": Row(
        optimizers.AdagradMomentum,
        {
            "momentum": "momentum",
            "use_nesterov": "use_nesterov",
            "exponent": "exponent",
            "beta2": "beta2",
            "epsilon": "epsilon",
        },
        {"accumulators": "AdagradMomentum/Accumulator", "momenta": "AdagradMomentum/Momentum"},
        for_columns=False,
    ),
    "ProximalYogiParameters": Row(
        optimizers.ProximalYogi,
        {
            "beta1": "beta_1",
            "beta2": "beta_2",
            "epsilon": "epsilon",
            "l1_regularization_strength": "l1_regularization_strength",
            "l2_regularization_strength": "l2_regularization_strength",
            "initial_accumulator_value": "initial_accumulator_value",
        },
        {"v": "ProximalYogi", "m": "ProximalYogi_1"},
        for_columns=False,
    ),
    "FrequencyEstimatorParameters": Row(
        optimizers.FrequencyEstimator,
        {
            "tau": "tau",
            "max_delta": "max_delta",
            "outlier_threshold": "outlier_threshold",
            "weight_exponent": "weight_exponent",
            # Stock has no such setting; an attribute of this name turns the engine's switch.
            "weighted": "weighted",
        },
        {"last_hit_step": "FrequencyEstimator"},
        for_columns=False,
    ),
}
"""Every legacy optimizer, by class name."""


def kind_of(optimizer: Any) -> str | None:
    """Returns the row's name for a legacy optimizer, stock's or ours; None if there is no row."""
    return next((name for name in class_names(optimizer) if name in OPTIMIZERS), None)
