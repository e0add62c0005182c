"""Computes the smallest error that a comparison would have seen, array by array.

The error is a factor on how far an array moves: a learning rate that is two per cent off is 0.02.
It shows in an element beyond its tolerance, or in the direction in which elements differ, because
rounding goes both ways equally often.
"""

from __future__ import annotations

import math

import numpy as np

from estimator_bridge.verification.findings import LIMIT
from tf2_engine.types import Array

SIGNIFICANT = 6.0
"""Standard deviations that chance exceeds only once in a thousand million counts."""
SMALLEST_FACTOR = 4e-6
"""The smallest factor that counts as systematic, about 67 roundings.

float32 constants, and rates computed in another way, differ by a few tens of roundings.
"""


class Power:
    """The smallest errors of one array that its steps would have shown.

    Attributes:
        elementwise: the smallest factor that takes an element beyond its tolerance.
        along, against: how many elements differ in the direction of their movement, and against it.
    """

    def __init__(self) -> None:
        self.elementwise = math.inf
        self.moved = False
        self.largest = 0.0
        self.along = self.against = 0
        self._bits = 0.0
        self._product = self._square = self._bias = 0.0
        self._row_factors: Array | None = None

    def add(self, allowed: Array, moved: Array) -> Array:
        """Adds a step; returns the smallest visible factor of each element."""
        distance = np.abs(moved)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            factors = np.where(distance > 0, allowed / distance, np.inf)
        # If everything is NaN, no movement is seen, and nothing can be told.
        self.moved |= bool(((distance > 0) | np.isnan(distance)).any())
        self.largest = max(self.largest, float(np.max(distance, initial=0.0)))
        self.elementwise = min(self.elementwise, float(np.min(factors, initial=np.inf)))
        return factors

    def add_rows(self, factors: Array, rows: Array, total: int) -> None:
        if self._row_factors is None:
            self._row_factors = np.full(total, np.nan, np.float32)
        least = factors.reshape(len(factors), -1).min(1, initial=np.inf)
        self._row_factors[rows] = np.fmin(self._row_factors[rows], least)

    def add_signs(self, residual: Array, moved: Array, spacing: Array, bias: Array) -> bool:
        """Adds the directions in which elements differ; returns whether they are systematic.

        Args:
            residual: by how much side B moved too far.
            bias: the tolerance for an error that all elements share in one direction.
        """
        usable = (moved != 0) & np.isfinite(residual) & np.isfinite(bias)
        residual, moved = residual[usable], moved[usable]
        weights = 1 / np.square(spacing[usable])
        product = residual * moved
        along, against = np.count_nonzero(product > 0), np.count_nonzero(product < 0)
        sums = (
            float(np.sum(weights * product)),
            float(np.sum(weights * np.square(moved))),
            float(np.sum(weights * np.abs(bias[usable] * moved))),
        )
        of_step = _is_systematic(along, against, *sums)
        self.along, self.against = self.along + along, self.against + against
        self._bits += float(np.sum(np.abs(moved) * np.sqrt(weights)))
        self._product += sums[0]
        self._square += sums[1]
        self._bias += sums[2]
        return of_step or _is_systematic(
            self.along, self.against, self._product, self._square, self._bias
        )

    @property
    def factor(self) -> float:
        """How much further side B moves, as a fraction of the movement."""
        return self._product / self._square if self._square else 0.0

    @property
    def visible(self) -> float:
        if not self._bits:
            return self.elementwise
        honest = self.along + self.against
        needed = SIGNIFICANT * (SIGNIFICANT + math.sqrt(SIGNIFICANT**2 + 4 * honest)) / 2
        counted = max(needed / self._bits, SMALLEST_FACTOR, self._bias / self._square)
        # Counting needs elements that differ by single bits, so they must move by several.
        return min(self.elementwise, counted)

    @property
    def rows(self) -> tuple[int, int]:
        if self._row_factors is None:
            return 0, 0
        moved = np.isfinite(self._row_factors)
        decided = self._row_factors[moved] <= LIMIT
        return int(np.count_nonzero(decided)), int(np.count_nonzero(moved))

    @property
    def undecided_row(self) -> int | None:
        if self._row_factors is None:
            return None
        (rows,) = np.nonzero(np.isfinite(self._row_factors) & (self._row_factors > LIMIT))
        return int(rows[0]) if len(rows) else None


def _is_systematic(along: int, against: int, product: float, square: float, bias: float) -> bool:
    total = along + against
    if not total or abs(along - against) < SIGNIFICANT * math.sqrt(total) or not square:
        return False
    return abs(product) > max(SMALLEST_FACTOR * square, bias)
