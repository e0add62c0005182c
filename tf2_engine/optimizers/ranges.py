"""The ranges of an optimizer's settings, and what each setting is for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from tf2_engine.types import Object


class Range(NamedTuple):
    """The allowed values of a setting: a test, which is False for NaN, and a text for messages."""

    contains: Callable[[Object], bool]
    rule: str


def _is_number(value: Object, test: Callable[[float], bool] = lambda x: not math.isnan(x)) -> bool:
    if isinstance(value, (str, bytes)):  # float() would parse these.
        return False
    try:
        return test(float(value))
    except (TypeError, ValueError):
        return False


def _is_finite(value: Object) -> bool:
    return _is_number(value, math.isfinite)


POSITIVE = Range(lambda x: 0.0 < x < math.inf, "must be positive and finite")
NOT_NEGATIVE = Range(lambda x: 0.0 <= x < math.inf, "must be at least 0 and finite")
NOT_POSITIVE = Range(lambda x: -math.inf < x <= 0.0, "must be at most 0 and finite")
FINITE = Range(math.isfinite, "must be finite")
FRACTION = Range(lambda x: 0.0 <= x <= 1.0, "must be in [0, 1]")
BELOW_ONE = Range(lambda x: 0.0 <= x < 1.0, "must be in [0, 1)")
INSIDE_UNIT = Range(lambda x: 0.0 < x < 1.0, "must be in (0, 1)")

# Settings that all optimizers share.
RATE = Range(lambda x: callable(x) or _is_finite(x), "must be a finite number")
FACTOR = Range(lambda x: x is None or _is_finite(x), "must be a finite number")
LIMIT = Range(lambda x: x is None or _is_number(x), "must be a number or None")
# Stock takes a bool. The values of the proto's enum, 0 and 1, are equal to bools.
FLAG = Range(lambda x: x in (False, True), "must be a bool")
FUNCTION = Range(lambda x: x is None or callable(x), "must be callable")


REQUIRED = dataclasses.MISSING
"""Stands for the default of a setting that must be passed."""


def setting(
    default: Object, allowed: Range | None, proto: str | None = None, *, slot: str | None = None
) -> Object:
    """Declares a field of an optimizer's class. A `REQUIRED` field must be passed by name.

    `allowed=None` allows any value. `proto` is the field of the optimizer's proto message. `slot`
    is the name of the slot, if the setting is the initial value of a slot.
    """
    metadata = {"range": allowed, "proto": proto, "slot": slot}
    return dataclasses.field(default=default, kw_only=default is REQUIRED, metadata=metadata)
