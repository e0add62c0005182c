"""Measures how far rounding moves each array of a model, separately for each scale of magnitudes.

Side A runs once more from the same states with changed last bits of its activations. How far that
moves an array shows how far rounding may move it. Elements are grouped by magnitude, so that large
elements do not hide an error in one that is a thousand times smaller.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tf2_engine.types import Array

FACTOR = 8.0
"""This multiple of the measured movement is allowed, as the measurement is one sample of rounding.

Between two versions of TensorFlow and between two graphs of one model, the roundings of a model
of some layers move gradients by half of what the changed bits do, single elements by three times
it.
"""
_BITS_PER_SCALE = 3
"""Elements are of one scale if their magnitudes are within a factor of eight."""
_ZERO = -(1 << 20)
_FEW = 32
"""A scale with fewer measured elements also uses its neighbours' measures."""
_USUAL = 0.98
"""The share of elements of a scale that thresholds in the model do not affect."""
_MIN_FOR_JUMPS = 256
"""Smaller arrays are too small to tell jumps from usual movements."""


@dataclasses.dataclass
class _Scale:
    """The measure of one scale.

    Attributes:
        level: the most that usual elements move in any step.
        top: the most that any element moves.
        count: the number of measured elements.
    """

    level: float = 0.0
    top: float = 0.0
    count: int = 0

    def add(self, moved: Array, *, has_jumps: bool) -> None:
        top = float(moved.max())
        usual = float(np.quantile(moved, _USUAL)) if has_jumps and moved.size >= _FEW else top
        self.level, self.top = max(self.level, usual), max(self.top, top)
        self.count += moved.size


class Noise:
    """The effect of changed bits on one array.

    Args:
        has_jumps: whether rows are samples. A threshold in the model may move single samples
            further
            than rounding moves the others.
    """

    def __init__(self, *, has_jumps: bool) -> None:
        self._has_jumps = has_jumps
        self._scales: dict[int, _Scale] = {}
        self._most_moved: Array | None = None

    def add(self, values: Array, moved: Array) -> None:
        """Measures one step.

        Args:
            values: the array on side A.
            moved: how far its elements moved.
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
        """Returns how far elements of an array usually move; with `top` how far any of them does.

        An element that moves by more than its size consists of rounding errors, so its scale is a
        matter of chance. If its scale has few elements, its own movement over all steps counts.
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
    magnitude = np.abs(values.astype(np.float64))
    usual = (magnitude > 0) & np.isfinite(magnitude)
    _, exponents = np.frexp(np.where(usual, magnitude, 1.0))
    return np.where(usual, exponents // _BITS_PER_SCALE, _ZERO)
