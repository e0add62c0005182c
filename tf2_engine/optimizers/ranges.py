"""The numbers that a setting of an optimizer may have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias


class Range(NamedTuple):
    """The numbers that a setting may have.

    Attributes:
        contains: whether a number is one of them; no range holds NaN.
        rule: what a message says of the setting.
    """

    contains: Callable[[float], bool]
    rule: str


Ranges: TypeAlias = Mapping[str, Range]
"""The range of each setting, by name."""

POSITIVE = Range(lambda x: x > 0.0, "must be positive")
POSITIVE_AND_FINITE = Range(lambda x: 0.0 < x < math.inf, "must be positive and finite")
NOT_NEGATIVE = Range(lambda x: x >= 0.0, "must be at least 0")
NOT_POSITIVE = Range(lambda x: x <= 0.0, "must be at most 0")
FINITE = Range(math.isfinite, "must be finite")
FRACTION = Range(lambda x: 0.0 <= x <= 1.0, "must be in [0, 1]")
BELOW_ONE = Range(lambda x: 0.0 <= x < 1.0, "must be in [0, 1)")
INSIDE_UNIT = Range(lambda x: 0.0 < x < 1.0, "must be in (0, 1)")
