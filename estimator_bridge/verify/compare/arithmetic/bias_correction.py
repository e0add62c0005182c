"""Bounds the error of Adam's bias correction if one side computes the powers of betas anew.

The legacy Adam multiplies a variable by beta in each step, so it rounds t times in t steps; Keras
computes the power from the step. The rate contains sqrt(1 - beta_2^t) / (1 - beta_1^t), and 1 -
power keeps the absolute error of the power, which dominates while the difference is small.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from estimator_bridge.verify.compare.arithmetic.rounded import UNIT_ROUNDOFF
from tf2_engine.types import Array

_EXPONENTS = {"beta1_power": 1.0, "beta2_power": 0.5}
"""For each power's variable: the absolute exponent of 1 - power in the rate."""
_ROUNDINGS_OF_POWER = 4
"""Roundings of a power that is computed directly, and of the difference."""
_SLOT = "/Adam"


def relative_error(
    name: str, before: Mapping[str, Array], computed: Collection[str], step: int
) -> float:
    """Bounds the relative error of a variable's update; 0 without bias correction.

    Args:
        before: the variables before the step, with the powers.
        computed: the variables that only one side has.
        step: the number of the step, from 1.
    """
    if not any(each.startswith(f"{name}/") and each.endswith(_SLOT) for each in before):
        return 0.0
    error = 0.0
    for power in computed:
        exponent = _EXPONENTS.get(power.rpartition("/")[2])  # canned estimators have a scope
        if exponent is not None and power in before and float(before[power]) < 1.0:
            value = float(before[power])
            roundings = (step + _ROUNDINGS_OF_POWER) * UNIT_ROUNDOFF
            error += exponent * roundings * value / (1.0 - value)
    return error
