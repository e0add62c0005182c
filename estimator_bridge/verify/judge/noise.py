"""Measures how far rounding moves the arrays of a model, one by one and scale by scale.

Side A runs once more from the same states, with activations whose last bits are changed. What that
moves in an array is the measure of what rounding may move there, and in no other array. Elements
are grouped by their magnitude, so that none hides one that is a thousand times smaller.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tf2_engine.types import Array

FACTOR = 8.0
"""The multiple of what the changed bits move that is allowed: it is one sample of rounding.

In a model of some layers the roundings of its own operations move gradients by half of what the
changed bits do, as measured between two TensorFlows and between two graphs of one model; single
elements by three times as much as most.
"""
_BITS_PER_SCALE = 3
"""Elements are of one scale if their magnitudes are within a factor of eight."""
_ZERO = -(1 << 20)
_FEW = 32
"""Below so many measured elements a scale takes its neighbours' as well."""
_USUAL = 0.98
"""The share of the elements of a scale that a threshold in the model does not concern."""
_MIN_FOR_JUMPS = 256
"""Elements that an array must have before some may be told from the usual ones."""


@dataclasses.dataclass
class _Scale:
    """The measure of one scale.

    Attributes:
        level: what most elements move, at most, in any step.
        top: what any element moves.
        count: of elements measured.
    """

    level: float = 0.0
    top: float = 0.0
    count: int = 0

    def add(self, moved: Array, *, has_jumps: bool) -> None:
        """Measures the elements of a step."""
        top = float(moved.max())
        usual = float(np.quantile(moved, _USUAL)) if has_jumps and moved.size >= _FEW else top
        self.level, self.top = max(self.level, usual), max(self.top, top)
        self.count += moved.size


class Noise:
    """The effect of changed bits on one array.

    Args:
        has_jumps: whether rows are samples, of which a threshold in the model may move single
            ones by more than rounding moves the others.
    """

    def __init__(self, *, has_jumps: bool) -> None:
        self._has_jumps = has_jumps
        self._scales: dict[int, _Scale] = {}
        self._most_moved: Array | None = None

    def add(self, values: Array, moved: Array) -> None:
        """Measures one step.

        Args:
            values: the array on side A.
            moved: how far its elements have moved.
        """
        scales = scales_of(values).ravel()
        moved = np.where(np.isfinite(moved), moved, 0.0)
        if self._most_moved is None or self._most_moved.shape != moved.shape:
            self._most_moved = moved
        self._most_moved = np.maximum(self._most_moved, moved)
        moved = moved.ravel()
        has_jumps = self._has_jumps and moved.size >= _MIN_FOR_JUMPS
        for scale in np.unique(scales).tolist():
            self._scales.setdefault(scale, _Scale()).add(
                moved[scales == scale], has_jumps=has_jumps
            )

    def level(self, values: Array, *, top: bool = False) -> Array:
        """Returns how far the elements of an array usually move; with `top` how far any does.

        An element that moves further than it is large is nothing but rounding, as the gradient of
        a bias before a batch norm: it is of its scale by chance. Where few others are, it is
        measured by itself, over all steps.
        """
        scales = scales_of(values)
        levels, is_rare = np.zeros(values.shape), np.zeros(values.shape, bool)
        for scale in np.unique(scales).tolist():
            measure, of_scale = self._measure(scale), scales == scale
            levels[of_scale] = measure.top if top else measure.level
            is_rare[of_scale] = measure.count < _FEW
        moved = self._most_moved
        if moved is None or moved.shape != values.shape:
            return levels
        is_chance = is_rare & (moved > np.abs(values))
        return np.where(is_chance, np.maximum(levels, moved), levels)

    def _measure(self, scale: int) -> _Scale:
        measure = self._scales.get(scale, _Scale())
        if measure.count >= _FEW:
            return measure
        near = [measure, *(self._scales.get(each, _Scale()) for each in (scale - 1, scale + 1))]
        levels, tops, counts = zip(*map(dataclasses.astuple, near), strict=True)
        return _Scale(max(levels), max(tops), sum(counts))


def scales_of(values: Array) -> Array:
    """Returns a number for each element that is that of its scale."""
    magnitude = np.abs(values.astype(np.float64))
    usual = (magnitude > 0) & np.isfinite(magnitude)
    _, exponents = np.frexp(np.where(usual, magnitude, 1.0))
    return np.where(usual, exponents // _BITS_PER_SCALE, _ZERO)
