"""Bounds the error of Adam's bias correction where a side computes the powers of betas anew.

The legacy Adam multiplies beta into a variable in each step, which rounds t times in t steps; Keras
takes the power of the step. The rate has sqrt(1 - beta_2^t) / (1 - beta_1^t), and 1 - power has the
error of the power, however small the difference is: in the first steps that is most of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from estimator_bridge.verify.judge.arithmetic.rounded import UNIT_ROUNDOFF
from tf2_engine.types import Array

_EXPONENTS = {"beta1_power": 1.0, "beta2_power": 0.5}
"""By the variable of a power, the exponent of 1 - power in the rate, without its sign."""
_ROUNDINGS_OF_POWER = 4
"""Roundings of a power that is computed at once, and of the difference."""
_SLOT = "/Adam"


def relative_error(
    name: str, before: Mapping[str, Array], computed: Collection[str], step: int
) -> float:
    """Returns by how much of itself an update of a variable may be off; 0 without bias correction.

    Args:
        before: the variables before the step, with the powers that correct it.
        computed: the variables that one side does without.
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
