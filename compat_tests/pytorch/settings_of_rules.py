"""Settings of every optimizer of the engine, which fit every counterpart of the map of rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

_L1, _L2 = "l1_regularization_strength", "l2_regularization_strength"


def _adams() -> Iterator[dict[str, Any]]:
    for lazy, inside in itertools.product((True, False), repeat=2):
        # An epsilon that is large enough to show where it is added.
        numbers = {"beta_1": 0.9, "beta_2": 0.99, "epsilon": 0.125}
        yield {**numbers, "lazy_adam": lazy, "sum_inside_sqrt": inside}


_FTRL = {
    "learning_rate_power": -0.5,
    _L1: 0.0,
    _L2: 0.0,
    "beta": 0.0,
    "initial_accumulator_value": 0.25,
    "multiply_linear_by_learning_rate": False,
}
_YOGI = {"beta_1": 0.9, "beta_2": 0.99, "epsilon": 0.125, "initial_accumulator_value": 0.0625}
_SCALED = {"momentum": 0.5, "exponent": 2.0, "beta2": 1.0, "epsilon": 0.125}

SETTINGS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "SGD": ({},),
    "Adagrad": ({"initial_accumulator_value": 0.25},),
    "AdagradMomentum": (
        {**_SCALED, "use_nesterov": False},
        {**_SCALED, "use_nesterov": True},
        {**_SCALED, "use_nesterov": True, "beta2": 0.75},
        {**_SCALED, "use_nesterov": False, "exponent": 3.0},
    ),
    "Adam": tuple(_adams()),
    "FTRL": (
        _FTRL,
        {**_FTRL, _L1: 0.25, _L2: 0.125, "beta": 0.5, "learning_rate_power": -0.75},
        {**_FTRL, _L1: 0.25, _L2: 0.125, "multiply_linear_by_learning_rate": True},
    ),
    "Momentum": (
        {"momentum": 0.75, "use_nesterov": False},
        {"momentum": 0.75, "use_nesterov": True},
    ),
    "RMSProp": (
        {"rho": 0.75, "momentum": 0.5, "epsilon": 0.125},
        {"rho": 0.75, "momentum": 0.0, "epsilon": 0.0},
        {"rho": 0.75, "momentum": 0.5, "epsilon": 0.0},
    ),
    "CenteredRMSProp": ({"rho": 0.75, "momentum": 0.5, "epsilon": 0.125},),
    "ProximalAdagrad": (
        {"initial_accumulator_value": 0.25, _L1: 0.0, _L2: 0.0},
        {"initial_accumulator_value": 0.25, _L1: 0.25, _L2: 0.125},
    ),
    "ProximalYogi": ({**_YOGI, _L1: 0.0, _L2: 0.0}, {**_YOGI, _L1: 0.25, _L2: 0.125}),
    "Adadelta": ({"rho": 0.75, "epsilon": 0.125},),
    "FrequencyEstimator": (
        {"tau": 0.25, "max_delta": 10.0, "outlier_threshold": 5.3, "weight_exponent": 0.5},
    ),
}
