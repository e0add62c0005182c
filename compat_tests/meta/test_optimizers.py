"""Checks each reference update rule against one or two steps worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from compat_tests.references.optimizers import OPTIMIZERS


@dataclass(frozen=True)
class Step:
    """One element's update. Slots are in the order of the optimizer's `slot_names`."""

    name: str
    settings: Mapping[str, float]
    w: float
    slots: tuple[float, ...]
    g: float
    lr: float
    new_w: float
    new_slots: tuple[float, ...]
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name}{' ' + self.note if self.note else ''}"


ADAM = {"beta_1": 0.5, "beta_2": 0.75, "epsilon": 4.0, "lazy_adam": True, "sum_inside_sqrt": True}
L1, L2 = "l1_regularization_strength", "l2_regularization_strength"
FTRL = {
    "learning_rate_power": -0.5,
    L1: 0.0,
    L2: 0.0,
    "beta": 0.0,
    "multiply_linear_by_learning_rate": False,
    "initial_accumulator_value": 0.1,
}
L1_L2 = {L1: 0.25, L2: 1.0}
START = {"initial_accumulator_value": 0.1}
MOMENTUM = {"momentum": 0.5, "use_nesterov": False, "exponent": 2.0, "beta_2": 1.0, "epsilon": 0.0}
RMS = {"rho": 0.75, "momentum": 0.5, "epsilon": 6.0}
PROXIMAL = {**START, L1: 2.0, L2: 10.0}
YOGI = {
    "beta_1": 0.5,
    "beta_2": 0.6875,
    "epsilon": 1.0,
    L1: 1.0,
    L2: 5.0,
    "initial_accumulator_value": 1e-6,
}
FREQUENCY = {"tau": 0.25, "max_delta": 100.0, "outlier_threshold": 2.0, "weight_exponent": 1.0}

# The new weight and slots are worked out in the comments.
STEPS = [
    # 1 - 0.5 * 3
    Step("SGD", {}, 1, (), 3, 0.5, -0.5, ()),
    # a = 7 + 9 = 16; 1 - 0.5 * 3 / 4
    Step("Adagrad", START, 1, (7,), 3, 0.5, 0.625, (16,)),
    # a = 16 + 9 = 25; 0.625 - 0.5 * -3 / 5
    Step("Adagrad", START, 0.625, (16,), -3, 0.5, 0.925, (25,), "second step"),
    # m = 0.5 * 6 = 3; v = 0.25 * 36 = 9; sqrt(9 + 4^2) = 5; 1 - 1.25 * 3 / 5
    # Bias correction on step one would make m 6 and v 36.
    Step("Adam", ADAM, 1, (0, 0), 6, 1.25, 0.25, (3, 9), "epsilon inside"),
    # sqrt(9) + 4 = 7; 1 - 1.75 * 3 / 7
    Step(
        "Adam",
        {**ADAM, "sum_inside_sqrt": False},
        *(1, (0, 0), 6, 1.75, 0.25, (3, 9), "epsilon outside"),
    ),
    # m = 0.5 * 8 = 4; v = 0.75 * 12 = 9; sqrt(9 + 16) = 5; 1 - 1.25 * 4 / 5
    Step("Adam", ADAM, 1, (8, 12), 0, 1.25, 0, (4, 9), "later step, zero gradient"),
    # a = 9 + 16 = 25; 5 - 3 = 2; z = 1 + 4 - 2 * 1 / 0.5 = 1; -1 / (5 / 0.5)
    Step("FTRL", FTRL, 1, (9, 1), 4, 0.5, -0.1, (25, 1)),
    # the same with (0.25 - 1) / (5 / 0.5 + 2 * 1) = -0.75 / 12
    Step("FTRL", {**FTRL, **L1_L2}, 1, (9, 1), 4, 0.5, -0.0625, (25, 1), "l1 and l2"),
    # z = -9 + 4 - 4 = -9; (-0.25 + 9) / 12
    Step(
        "FTRL",
        {**FTRL, **L1_L2},
        *(1, (9, -9), 4, 0.5, 8.75 / 12, (25, -9), "l1 and l2, negative linear"),
    ),
    # |z| = 1 <= l1
    Step("FTRL", {**FTRL, L1: 1.5}, 1, (9, 1), 4, 0.5, 0, (25, 1), "l1 above the linear"),
    # (0.25 - 1) / ((5 + 1) / 0.5 + 2) = -0.75 / 14
    Step("FTRL", {**FTRL, **L1_L2, "beta": 1.0}, 1, (9, 1), 4, 0.5, -0.75 / 14, (25, 1), "beta"),
    # power 1: 25 - 9 = 16; z = 1 + 4 - 16 / 0.5 = -27; 27 / (25 / 0.5)
    Step(
        "FTRL",
        {**FTRL, "learning_rate_power": -1.0},
        *(1, (9, 1), 4, 0.5, 0.54, (25, -27), "power -1"),
    ),
    # power 0: the powers are 1, so z = 1 + 4 - 0 = 5; -5 / (1 / 0.5)
    Step("FTRL", {**FTRL, "learning_rate_power": 0.0}, 1, (9, 1), 4, 0.5, -2.5, (25, 5), "power 0"),
    # z = 0.5 * 4 + 1 - 2 * 1 = 1; (0.125 - 1) / (5 + 1 + 2 * 0.5 * 1) = -0.875 / 7
    Step(
        "FTRL",
        {**FTRL, **L1_L2, "beta": 1.0, "multiply_linear_by_learning_rate": True},
        *(1, (9, 1), 4, 0.5, -0.125, (25, 1), "linear times rate"),
    ),
    # a = 0 + 16; z = 4 - 4 * 1 / 0.5 = -4; 4 / (4 / 0.5): a zero accumulator needs no care
    Step("FTRL", FTRL, 1, (0, 0), 4, 0.5, 0.5, (16, -4), "zero accumulator"),
    # a = 25; s = 4 / 5; m = 0.5 * 0.4 + 0.8 = 1; 1 - 0.5 * 1
    Step("AdagradMomentum", MOMENTUM, 1, (9, 0.4), 4, 0.5, 0.5, (25, 1)),
    # 0.5 * 1 + 0.8 = 1.3; 1 - 0.5 * 1.3
    Step(
        "AdagradMomentum",
        {**MOMENTUM, "use_nesterov": True},
        *(1, (9, 0.4), 4, 0.5, 0.35, (25, 1), "nesterov"),
    ),
    # a = 0.75 * 12 + 0.25 * 36 = 18; s = 6 / sqrt(18 + 7) = 1.2; m = 1.2; 1 - 0.5 * 1.2
    Step(
        "AdagradMomentum",
        {**MOMENTUM, "beta_2": 0.75, "epsilon": 7.0},
        *(1, (12, 0), 6, 0.5, 0.4, (18, 1.2), "moving average"),
    ),
    # exponent 1: s = 4 / 25 = 0.16; m = 0.16; 1 - 0.5 * 0.16
    Step(
        "AdagradMomentum",
        {**MOMENTUM, "exponent": 1.0},
        *(1, (9, 0), 4, 0.5, 0.92, (25, 0.16), "exponent 1"),
    ),
    # m = 0.5 * 2 + 3 = 4; 1 - 0.25 * 4
    Step("Momentum", {"momentum": 0.5, "use_nesterov": False}, 1, (2,), 3, 0.25, 0, (4,)),
    # 1 - 0.25 * 3 - 0.25 * 0.5 * 4
    Step(
        "Momentum",
        {"momentum": 0.5, "use_nesterov": True},
        *(1, (2,), 3, 0.25, -0.25, (4,), "nesterov"),
    ),
    # ms = 0.75 * 4 + 0.25 * 64 = 19; mom = 0.5 * 2 + 0.5 * 8 / sqrt(25) = 1.8; 1 - 1.8
    Step("RMSProp", RMS, 1, (4, 2), 8, 0.5, -0.8, (19, 1.8)),
    # mg = 0.75 * 4 + 0.25 * 8 = 5; 19 - 25 + 31 = 25; mom and w as above
    Step("CenteredRMSProp", {**RMS, "epsilon": 31.0}, 1, (4, 2, 4), 8, 0.5, -0.8, (19, 1.8, 5)),
    # a = 25; eta = 0.5 / 5 = 0.1; 1 - 0.1 * 4 = 0.6; (0.6 - 0.1 * 2) / (1 + 0.1 * 10)
    Step("ProximalAdagrad", PROXIMAL, 1, (9,), 4, 0.5, 0.2, (25,)),
    # -0.2 - 0.4 = -0.6; -(0.6 - 0.2) / 2
    Step("ProximalAdagrad", PROXIMAL, -0.2, (9,), 4, 0.5, -0.2, (25,), "negative"),
    # 0.5 - 0.4 = 0.1, less than 0.2
    Step("ProximalAdagrad", PROXIMAL, 0.5, (9,), 4, 0.5, 0, (25,), "shrunk to zero"),
    # 0.6 / (1 + 0.1 * 10)
    Step("ProximalAdagrad", {**PROXIMAL, L1: 0.0}, 1, (9,), 4, 0.5, 0.3, (25,), "l2 only"),
    # m = 0.5 * 4 = 2; 4 < 16 so v = 4 + 0.3125 * 16 = 9; eta = 0.8 / (3 + 1) = 0.2;
    # 1 - 0.2 * 2 = 0.6; (0.6 - 0.2 * 1) / (1 + 0.2 * 5)
    Step("ProximalYogi", YOGI, 1, (4, 0), 4, 0.8, 0.2, (9, 2), "v grows"),
    # m = 0.5 * 4 + 0.5 * 4 = 4; 21 > 16 so v = 21 - 5 = 16; eta = 1 / (4 + 1) = 0.2;
    # 1 - 0.2 * 4 = 0.2; (0.2 - 0.2) / 2
    Step("ProximalYogi", YOGI, 1, (21, 4), 4, 1.0, 0, (16, 4), "v shrinks"),
    # v = g^2 stays 16; eta = 0.2 as above; 3 - 0.8 = 2.2; (2.2 - 0.2) / 2
    Step("ProximalYogi", YOGI, 3, (16, 4), 4, 1.0, 1, (16, 4), "v stays"),
    # a = 0.75 * 4 + 0.25 * 64 = 19; u = 8 * sqrt(3 + 6) / sqrt(19 + 6) = 4.8;
    # d = 0.75 * 3 + 0.25 * 23.04 = 8.01; 1 - 0.5 * 4.8
    Step("Adadelta", {"rho": 0.75, "epsilon": 6.0}, 1, (4, 3), 8, 0.5, -1.4, (19, 8.01)),
    # delta = 58 - 50 = 8 < 20; 10 * 0.75 + 8 * 0.25; the gradient of 77 is not read
    Step("FrequencyEstimator", FREQUENCY, 10, (50,), 77, 58, 9.5, (58,)),
    # delta = 20 is the threshold of 2 * 10 itself
    Step("FrequencyEstimator", FREQUENCY, 10, (50,), 0, 70, 20, (70,), "outlier"),
    # delta = 450, held to 100
    Step(
        "FrequencyEstimator", FREQUENCY, 10, (50,), 0, 500, 100, (500,), "outlier beyond max_delta"
    ),
    # delta = 150 < 160, held to 100; 80 * 0.75 + 100 * 0.25
    Step("FrequencyEstimator", FREQUENCY, 80, (50,), 0, 200, 85, (200,), "held to max_delta"),
]


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_one_step_by_hand(step: Step) -> None:
    """A rule turns the weight and slots into the ones worked by hand, and reads nothing else."""
    reference = OPTIMIZERS[step.name]
    reference.check(step.settings)
    names = reference.slot_names
    old = {name: np.array([value], float) for name, value in zip(names, step.slots, strict=True)}

    w, slots = reference.update(
        np.array([step.w], float), old, np.array([step.g], float), step.lr, step.settings
    )

    np.testing.assert_allclose(w, [step.new_w], rtol=1e-14, atol=1e-15)
    assert list(slots) == list(names)
    for name, value in zip(names, step.new_slots, strict=True):
        np.testing.assert_allclose(slots[name], [value], rtol=1e-14, err_msg=name)
    assert [old[name] for name in names] == [*step.slots], "slots were changed"


def test_every_optimizer_has_a_step() -> None:
    """An optimizer cannot be added to the table without a step worked by hand."""
    assert set() == set(OPTIMIZERS) - {step.name for step in STEPS}


def test_settings_are_neither_missing_nor_extra() -> None:
    with pytest.raises(ValueError, match=r"lacks \['use_nesterov'\].*know \['nesterov'\]"):
        OPTIMIZERS["Momentum"].check({"momentum": 0.9, "nesterov": True})
