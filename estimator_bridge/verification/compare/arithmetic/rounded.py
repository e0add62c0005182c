"""Computes values in float64 together with bounds on the rounding errors of float32.

The error of a result is the error of the operands plus one rounding (running error analysis:
Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.3).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tf2_engine.types import Array

UNIT_ROUNDOFF = 2.0**-24
SMALLEST_NORMAL = 2.0**-126
"""Smaller numbers may be flushed to zero by a float32 implementation."""
ROUNDINGS_PER_POWER = 4
"""`x ** y` counts as this many roundings, because implementations do not round it correctly."""


@dataclasses.dataclass(frozen=True)
class Rounded:
    """An array, and a bound on each element's float32 error; infinite if the error is unknown."""

    value: Array
    error: Array

    def __add__(self, other: Rounded | float) -> Rounded:
        right = rounded(other)
        return _with_rounding(self.value + right.value, self.error + right.error)

    def __sub__(self, other: Rounded | float) -> Rounded:
        return self + -rounded(other)

    def __mul__(self, other: Rounded | float) -> Rounded:
        right = rounded(other)
        error = abs(self.value) * right.error + (abs(right.value) + right.error) * self.error
        return _with_rounding(self.value * right.value, error + SMALLEST_NORMAL)

    def __truediv__(self, other: Rounded | float) -> Rounded:
        right = rounded(other)
        with np.errstate(divide="ignore", invalid="ignore"):
            quotient = self.value / right.value
            # A lower bound of the divisor's magnitude.
            least = abs(right.value) - right.error
            error = (self.error + abs(quotient) * right.error) / np.where(least > 0, least, 0.0)
        return _with_rounding(quotient, known(error))

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> Rounded:
        return rounded(other) - self

    def __neg__(self) -> Rounded:
        return Rounded(-self.value, self.error)

    def at(self, rows: Array) -> Rounded:
        return Rounded(self.value[rows], self.error[rows])

    def reshaped(self, *shape: int) -> Rounded:
        return Rounded(self.value.reshape(shape), self.error.reshape(shape))

    def zero_where(self, condition: Array) -> Rounded:
        return Rounded(np.where(condition, 0.0, self.value), np.where(condition, 0.0, self.error))

    def among_zeros(self, positions: Array, rows: int) -> Rounded:
        shape = rows, self.value.shape[1]
        whole = Rounded(np.zeros(shape), np.zeros(shape))
        whole.value[positions], whole.error[positions] = self.value, self.error
        return whole


def rounded(value: Array | Rounded | float) -> Rounded:
    if isinstance(value, Rounded):
        return value
    exact = np.asarray(value, np.float64)
    return Rounded(exact, np.zeros_like(exact))


def square(x: Rounded) -> Rounded:
    return x * x


def root(x: Rounded) -> Rounded:
    value = np.sqrt(np.maximum(x.value, 0.0))
    above = np.sqrt(np.maximum(x.value + x.error, 0.0)) - value
    below = value - np.sqrt(np.maximum(x.value - x.error, 0.0))
    return _with_rounding(value, np.maximum(above, below))


def power(x: Rounded, exponent: float) -> Rounded:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        low, value, high = (
            np.maximum(x.value + sign * x.error, 0.0) ** exponent for sign in (-1, 0, 1)
        )
        error = np.maximum(abs(low - value), abs(high - value))
    return Rounded(value, known(error) + ROUNDINGS_PER_POWER * UNIT_ROUNDOFF * abs(value))


def clip(x: Rounded, low: Rounded | float | None, high: Rounded | float | None) -> Rounded:
    value, least, most = x.value, x.value - x.error, x.value + x.error
    for hold, limit in ((np.maximum, low), (np.minimum, high)):
        if limit is not None:
            of = rounded(limit)
            value = hold(value, of.value)
            least, most = hold(least, of.value - of.error), hold(most, of.value + of.error)
    return Rounded(value, known(np.maximum(value - least, most - value)))


def magnitude(x: Rounded) -> Rounded:
    return Rounded(abs(x.value), x.error)


def sign_times(sign: Rounded, x: Rounded) -> Rounded:
    unsure = abs(sign.value) <= sign.error
    error = np.where(unsure, 2 * abs(x.value) + x.error, x.error)
    return Rounded(np.sign(sign.value) * x.value, error)


def choose(condition: Rounded, one: Rounded, other: Rounded) -> Rounded:
    value = np.where(condition.value >= 0, one.value, other.value)
    error = np.where(condition.value >= 0, one.error, other.error)
    unsure = abs(condition.value) <= condition.error
    either = abs(one.value - other.value) + one.error + other.error
    return Rounded(value, np.where(unsure, either, error))


def known(error: Array) -> Array:
    return np.where(np.isnan(error), np.inf, error)


def _with_rounding(value: Array, error: Array) -> Rounded:
    with np.errstate(invalid="ignore"):
        return Rounded(value, error + UNIT_ROUNDOFF * abs(value))
