"""Settings of optimizers apart from steps: initial values, stock's settings, and refusals."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.engine.test_optimizers import ESTIMATOR, engine_of, train_rows
from tf2_engine import (
    OPTIMIZERS,
    FrequencyEstimator,
    MDLAdagradLight,
    Optimizer,
    ProximalYogi,
    errors,
)
from tf2_engine.optimizers.adam import warn_inferred
from tf2_engine.specs import read_optimizer


@pytest.mark.parametrize("first, expected", [(3.0, 3.0), (None, ESTIMATOR["max_delta"])])
def test_an_initializer_goes_before_the_limit(first: float | None, expected: float) -> None:
    """Rows of a FrequencyEstimator start with what the table's initializer gives, if it has one.

    Otherwise they start at the limit. The step, which is the rate, may be an int.
    """
    step = tf.constant(1, tf.int64)
    engine = engine_of(FrequencyEstimator(lambda: step, **ESTIMATOR), first)
    assert train_rows(engine, r0=0.0).tolist() == [expected]


def test_an_optimizer_without_a_rule_is_not_trained() -> None:
    """A table whose optimizer has no rule is looked up; its gradients are refused by its name."""
    engine = engine_of(MDLAdagradLight(0.1, initial_accumulator_value=0.5), 2.0)
    ids = [{"ids": tf.constant([1], tf.int64)}]

    assert engine.look_up(ids)[0]["ids"].tolist() == [[2.0]]
    engine.retrieve()
    first_row = {kind: values[0, 0] for kind, values in engine.read()["hits"].items()}
    assert first_row == {"parameters": 2.0, "accumulators": 0.5, "weights": 0.0, "benefits": 0.0}
    with pytest.raises(errors.InvalidSpec, match=r"Table 'hits'.*`MDLAdagradLight` is not public"):
        train_rows(engine, r1=1.0)


def test_what_is_inferred_is_said_once() -> None:
    """The first ProximalYogi of a process warns that its rule is inferred, and no other does."""
    warn_inferred.cache_clear()
    with pytest.warns(UserWarning, match="`ProximalYogi`.*inferred.*not confirmed on a device"):
        ProximalYogi()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ProximalYogi()


STOCK_SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Adagrad": {"initial_accumulator_value": 0.5},
    "AdagradMomentum": {
        "momentum": 0.5,
        "use_nesterov": True,
        "exponent": 3.0,
        "beta2": 0.75,
        "epsilon": 0.25,
    },
    "Adam": {
        "beta_1": 0.5,
        "beta_2": 0.75,
        "epsilon": 0.25,
        "lazy_adam": False,
        "sum_inside_sqrt": False,
    },
    "FTRL": {
        "learning_rate_power": -0.25,
        "l1_regularization_strength": 1.0,
        "l2_regularization_strength": 2.0,
        "beta": 3.0,
        "initial_accumulator_value": 0.5,
        "multiply_linear_by_learning_rate": True,
        "allow_zero_accumulator": True,
    },
}


@pytest.mark.parametrize("kind", STOCK_SETTINGS)
def test_optimizers_of_stock_are_read(kind: str) -> None:
    """Every setting of an optimizer of tf.tpu.experimental.embedding arrives."""
    settings = STOCK_SETTINGS[kind]
    shared = {
        "clip_weight_min": -1.0,
        "clip_weight_max": 2.0,
        "weight_decay_factor": 0.125,
        "multiply_weight_decay_factor_by_learning_rate": True,
    }
    stock = getattr(tf.tpu.experimental.embedding, kind)(
        0.5, clipvalue=(-3.0, 4.0), **shared, **settings
    )

    expected = OPTIMIZERS[kind](
        0.5, clip_gradient_min=-3.0, clip_gradient_max=4.0, **shared, **settings
    )
    assert read_optimizer(stock) == expected
    fields = {field.name for field in dataclasses.fields(OPTIMIZERS[kind])}
    assert fields - {field.name for field in dataclasses.fields(Optimizer)} == set(settings)


L1, L2 = "l1_regularization_strength", "l2_regularization_strength"
START = "initial_accumulator_value"
NAN, INF = float("nan"), float("inf")
OUTSIDE: list[tuple[str, str, Any, str]] = [
    ("SGD", "learning_rate", NAN, "finite"),
    ("Adam", "learning_rate", INF, "finite"),
    ("SGD", "learning_rate", None, "finite"),
    ("SGD", "learning_rate", "fast", "finite"),
    ("SGD", "clip_weight_max", NAN, ""),
    ("SGD", "clip_weight_max", "one", ""),
    ("SGD", "clip_gradient_min", NAN, ""),
    ("SGD", "weight_decay_factor", NAN, ""),
    ("SGD", "low_dimensional_packing_status", 2, ""),
    ("Adagrad", "slot_variable_creation_fn", "add_slot", "must be"),
    ("Adagrad", START, 0.0, "must be positive and finite"),
    ("Adam", "beta_1", 1.0, r"must be in \[0, 1\)"),
    ("Adam", "beta_2", -0.1, r"must be in \[0, 1\)"),
    ("Adam", "epsilon", 0.0, "must be positive and finite"),
    ("AdagradMomentum", "momentum", -0.5, r"must be in \[0, 1\]"),
    ("AdagradMomentum", "beta2", 1.5, r"must be in \[0, 1\]"),
    ("AdagradMomentum", "exponent", 0.0, "must be positive"),
    ("AdagradMomentum", "epsilon", 0.0, "must be positive"),
    ("FTRL", "learning_rate", 0.0, "must not be 0 unless multiply_linear_by_learning_rate=True"),
    ("FTRL", "learning_rate_power", 0.5, "must be at most 0"),
    ("FTRL", L1, -1.0, "must be at least 0"),
    ("FTRL", L2, -1.0, "must be at least 0"),
    ("FTRL", "beta", -1.0, "must be at least 0"),
    ("FTRL", START, -1.0, "must be at least 0"),
    ("Momentum", "momentum", 1.5, r"must be in \[0, 1\]"),
    ("RMSProp", "rho", 1.5, r"must be in \[0, 1\]"),
    ("RMSProp", "momentum", -0.5, r"must be in \[0, 1\]"),
    ("RMSProp", "epsilon", -1.0, "must be at least 0"),
    ("CenteredRMSProp", "rho", -0.5, r"must be in \[0, 1\]"),
    ("CenteredRMSProp", "momentum", 1.5, r"must be in \[0, 1\]"),
    ("CenteredRMSProp", "epsilon", 0.0, "must be positive"),
    ("ProximalAdagrad", START, 0.0, "must be positive"),
    ("ProximalAdagrad", L1, -1.0, "must be at least 0"),
    ("ProximalAdagrad", L2, -1.0, "must be at least 0"),
    ("ProximalYogi", "beta_1", 1.0, r"must be in \[0, 1\)"),
    ("ProximalYogi", "beta_2", -0.5, r"must be in \[0, 1\)"),
    ("ProximalYogi", "epsilon", 0.0, "must be positive"),
    ("ProximalYogi", L1, -1.0, "must be at least 0"),
    ("ProximalYogi", L2, -1.0, "must be at least 0"),
    ("ProximalYogi", START, -1.0, "must be at least 0"),
    ("Adadelta", "rho", 1.5, r"must be in \[0, 1\]"),
    ("Adadelta", "epsilon", 0.0, "must be positive"),
    ("FrequencyEstimator", "learning_rate", 0.5, "must be a callable that returns the global step"),
    ("FrequencyEstimator", "tau", 1.0, r"must be in \(0, 1\)"),
    ("FrequencyEstimator", "max_delta", INF, "must be positive and finite"),
    ("FrequencyEstimator", "outlier_threshold", 0.0, "must be positive and finite"),
    ("FrequencyEstimator", "weight_exponent", NAN, "must be finite"),
    ("MDLAdagradLight", START, 0.0, "must be positive"),
    ("MDLAdagradLight", "mdl_hard_limit", NAN, "must be finite"),
    ("MDLAdagradLight", "weight_decay_factor", 0.5, "does not support weight decay"),
]
NEEDED: dict[str, dict[str, Any]] = {
    "Momentum": {"momentum": 0.5},
    "FrequencyEstimator": {"learning_rate": lambda: 1.0, **ESTIMATOR},
}


@pytest.mark.parametrize("kind, name, value, rule", OUTSIDE)
def test_settings_outside_their_range_are_refused(
    kind: str, name: str, value: Any, rule: str
) -> None:
    """A setting that a rule cannot work with is refused by name, with its rule and value."""
    message = f"`{kind}`.*(`{name}`.*{rule}.*got {value!r}|{rule}.*{name}={value})"
    with pytest.raises(errors.InvalidSpec, match=message):
        OPTIMIZERS[kind](**{**NEEDED.get(kind, {}), name: value})


TOGETHER: list[tuple[str, dict[str, Any], str]] = [
    (
        "SGD",
        {"clip_gradient_max": 1.0, "use_gradient_accumulation": False},
        "clip_gradient_max=1.0.*use_gradient_accumulation=False. Set it to True, or drop",
    ),
    (
        "Adam",
        {"clip_gradient_min": -1.0, "use_gradient_accumulation": False},
        "clip_gradient_min=-1.0.*use_gradient_accumulation=False. Set it to True, or drop",
    ),
    (
        "Adam",
        {"lazy_adam": False, "use_gradient_accumulation": False},
        "lazy_adam=False.*use_gradient_accumulation=False. Set it to True, or keep lazy_adam=True",
    ),
    (
        "Adagrad",
        {"clip_weight_min": 1.0, "clip_weight_max": 0.5},
        "`clip_weight_min` must not exceed `clip_weight_max`, which is 0.5, got 1.0",
    ),
    (
        "SGD",
        {"clip_gradient_min": 1.0, "clip_gradient_max": 0.5},
        "`clip_gradient_min` must not exceed `clip_gradient_max`, which is 0.5, got 1.0",
    ),
]


@pytest.mark.parametrize("kind, settings, message", TOGETHER)
def test_settings_that_exclude_each_other_are_refused(
    kind: str, settings: dict[str, Any], message: str
) -> None:
    """The message names both, and which of them to change."""
    with pytest.raises(errors.InvalidSpec, match=f"`{kind}.*{message}"):
        OPTIMIZERS[kind](**settings)
