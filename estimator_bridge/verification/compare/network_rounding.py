"""Judges the values that a model computes; tolerances come from the measured effect of rounding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    SUMMED_ROWS,
    VARIABLES,
    RecordedStep,
    Recording,
    Values,
)
from estimator_bridge.verification.compare import elements
from estimator_bridge.verification.compare.arithmetic.rounded import SMALLEST_NORMAL, UNIT_ROUNDOFF
from estimator_bridge.verification.compare.elements import apart
from estimator_bridge.verification.compare.paired_steps import joined_step
from estimator_bridge.verification.findings import Residual
from estimator_bridge.verification.perturbation import perturbed
from tf2_engine.types import Array

_ROUNDINGS = 32
"""Any result of a model may have an error of this many roundings, relative to its size."""
_ROUNDINGS_OF_UPDATE = 16
"""An update may have this many roundings, relative to the variable or to how far it moves."""
_CANCELLED = 1024.0
"""If terms of an update cancel, they are assumed to be at most this many times their sum."""

_EXPONENTS = {"beta1_power": 1.0, "beta2_power": 0.5}
"""Maps the variables with beta^t to the absolute exponent of 1 - beta^t in Adam's rate."""
_ROUNDINGS_OF_POWER = 4
"""Computing beta^t directly counts as this many roundings."""
_SLOT = "/Adam"

FACTOR = 8.0
"""This multiple of the measured distance is allowed, because the measurement is only one sample.

In models of a few layers, on two versions of TensorFlow and in two graphs, rounding moved most
gradients half as far as the changed bits moved them, but single elements three times as far.
"""
_BITS_PER_SCALE = 3
"""Elements have the same scale if their magnitudes differ by at most a factor of eight."""
_ZERO = -(1 << 20)
_FEW = 32
"""A scale with fewer measured elements also uses the measurements of the neighbouring scales."""
_USUAL = 0.98
"""At least this share of the elements does not cross a threshold, such as the 0 of a relu."""
_MIN_FOR_JUMPS = 256
"""In arrays with fewer elements, jumps across a threshold are not recognised."""


class Network:
    """Computes tolerances for the arrays of a model from the effect of changed bits on side A.

    Args:
        samples: the size of a batch, which bounds the number of terms in sums.
        features: the features whose activations and gradients have a row for each sample.
    """

    def __init__(
        self, a: Recording, perturbed_run: Recording | None, samples: int, features: set[str]
    ) -> None:
        self._samples, self._features = samples, features
        self._noise: dict[tuple[str, str], Noise] = {}
        self._ulps = {} if perturbed_run is None else perturbed_run.perturbed
        self._substituted = set() if perturbed_run is None else {*perturbed_run.substituted}
        if perturbed_run is not None:
            state: Values | None = None
            runs = (map(joined_step, run.steps()) for run in (a, perturbed_run))
            for one, other in zip(*runs, strict=False):
                self._measure(state, one, other)
                state = one.values.get(VARIABLES, state)

    def computed(
        self, group: str, name: str, a: Array, b: Array, p: Array | None, rounding: Array | float
    ) -> Residual:
        """Judges an activation, gradient or loss; `rounding` is an additional tolerance."""
        difference = apart(a, b)
        if not elements.is_float(a.dtype):
            return Residual(a, b, difference, np.zeros(a.shape), np.zeros(a.shape))
        magnitude = _finite(a)
        roundings = max(_ROUNDINGS, 0.5 * math.sqrt(self._samples))
        floor = roundings * elements.unit_roundoff(a.dtype) * magnitude + rounding + SMALLEST_NORMAL
        noise = self._noise.get((group, name))
        allowed, jumps = floor, None
        if noise is not None and name in self._features:
            allowed = floor + FACTOR * noise.level(a)
            beyond = np.abs(difference) > allowed
            has_p = p is not None and p.shape == a.shape
            jumps = _rows(beyond), _rows(np.abs(apart(a, p)) > allowed) if has_p else 0
            # A threshold in the model may move single samples further.
            allowed = np.where(beyond, floor + FACTOR * noise.level(a, top=True), allowed)
        elif noise is not None:
            allowed = floor + self._factor_of_sums * noise.level(a)
        moved = elements.wide(a) if elements.is_real(a.dtype) else np.abs(a)
        return Residual(a, b, difference, allowed, moved, jumps=jumps)

    def updated(
        self,
        name: str,
        before: Array,
        a: Array,
        b: Array,
        p: Array | None,
        *,
        same: bool,
        relative: float = 0.0,
    ) -> Residual:
        """Judges a variable that the model or its optimizer updates.

        `same` says whether both sides apply the same gradients. `relative` is an additional
        tolerance, as a share of the distance that the variable moves.
        """
        difference, moved = apart(a, b), apart(before, a)
        if not elements.is_float(a.dtype):
            return Residual(a, b, difference, np.zeros(a.shape), np.zeros(a.shape))
        besides = relative * np.abs(moved)
        allowed = _of_update(before, a, moved) + besides
        # The roundings of an update are relative to the distance moved, and may have one direction.
        rounding = _ROUNDINGS_OF_UPDATE * elements.unit_roundoff(a.dtype)
        bias = np.minimum(allowed, rounding * np.abs(moved)) + besides
        noise = self._noise.get((VARIABLES, name))
        if noise is None:
            return Residual(a, b, difference, allowed, moved, bias)
        if p is not None and self._is_driven(name):
            if not same:
                difference = self._from_same_gradients(name, before, b, p)
            return Residual(a, b, difference, allowed, moved, bias)
        # Equal gradients say nothing about a variable that moves by values that are not recorded.
        return Residual(a, b, difference, allowed + self._factor_of_sums * noise.level(a), moved)

    @property
    def _factor_of_sums(self) -> float:
        # Changed bits move a sum of n terms by about sqrt(n) roundings of a term. Another order of
        # addition moves it by up to n roundings, or by a tenth of n if errors are random.
        return max(FACTOR, 0.1 * math.sqrt(self._samples))

    def _from_same_gradients(self, name: str, before: Array, b: Array, p: Array) -> Array:
        """Compares side B with side A's optimizer, applied to side B's gradients.

        The perturbed run does this, but starts from changed values. So the distances moved must
        agree or, if the optimizer computes the variable anew from its slots, the new values.
        """
        began = perturbed(name, before, self._ulps.get(name, 0))
        moved = apart(before, b) - apart(began, p)
        anew = apart(p, b)
        return np.where(np.abs(moved) <= np.abs(anew), moved, anew)

    def _is_driven(self, variable: str) -> bool:
        return any(
            variable == name or variable.startswith(f"{name}/") or f"/{name}/" in variable
            for name in self._substituted
        )

    def _measure(self, state: Values | None, one: RecordedStep, other: RecordedStep) -> None:
        for group in (ACTIVATIONS, GRADIENTS, LOSS):
            for name, a, p in _pairs(one.values.get(group, {}), other.values.get(group, {})):
                if not name.endswith(SUMMED_ROWS):
                    self._add(group, name, a, apart(a, p))
        after = other.values.get(VARIABLES)
        if state is None or after is None:
            return
        for name, a, p in _pairs(one.values.get(VARIABLES, {}), after):
            began = perturbed(name, state[name], self._ulps.get(name, 0))
            self._add(VARIABLES, name, a, apart(began, p) - apart(state[name], a))

    def _add(self, group: str, name: str, a: Array, moved: Array) -> None:
        has_jumps = group == GRADIENTS and name in self._features
        noise = self._noise.setdefault((group, name), Noise(has_jumps=has_jumps))
        noise.add(a, np.abs(moved))


def _pairs(a: Mapping[str, Array], p: Mapping[str, Array]) -> Iterator[tuple[str, Array, Array]]:
    for name, array in a.items():
        other = p.get(name)
        if other is not None and other.shape == array.shape and elements.is_float(array.dtype):
            yield name, array, other


def _of_update(before: Array, a: Array, moved: Array) -> Array:
    distance = np.abs(moved)
    usual = float(np.sqrt(np.mean(np.square(_finite(distance))))) if distance.size else 0.0
    terms = np.maximum(distance, np.minimum(usual, _CANCELLED * distance))
    roundings = np.maximum(_finite(before), _finite(a)) / 2 + terms
    return _ROUNDINGS_OF_UPDATE * elements.unit_roundoff(a.dtype) * roundings + SMALLEST_NORMAL


def _rows(beyond: Array) -> int:
    return elements.count_rows(beyond) if beyond.ndim else 0


def _finite(values: Array) -> Array:
    magnitude = np.abs(elements.wide(values))
    return np.where(np.isfinite(magnitude), magnitude, 0.0)


def relative_error(
    name: str, before: Mapping[str, Array], computed: Collection[str], step: int
) -> float:
    """Bounds the relative error of Adam's update if only one side stores beta_1^t and beta_2^t.

    A stored power is rounded in every step. The rate contains sqrt(1 - beta_2^t) / (1 - beta_1^t),
    which has a large relative error in the first steps. `computed` names the variables with these
    powers that only one side stores.
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


@dataclasses.dataclass
class _Scale:
    """How far elements of one scale move: usually (`level`) and at most (`top`)."""

    level: float = 0.0
    top: float = 0.0
    count: int = 0

    def add(self, moved: Array, *, has_jumps: bool) -> None:
        top = float(moved.max())
        usual = float(np.quantile(moved, _USUAL)) if has_jumps and moved.size >= _FEW else top
        self.level, self.top = max(self.level, usual), max(self.top, top)
        self.count += moved.size


class Noise:
    """How far changed bits move the elements of one array, for each magnitude of elements.

    If rows are samples (`has_jumps`), some rows may move further, because they cross a threshold.
    """

    def __init__(self, *, has_jumps: bool) -> None:
        self._has_jumps = has_jumps
        self._scales: dict[int, _Scale] = {}
        self._most_moved: Array | None = None

    def add(self, values: Array, moved: Array) -> None:
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
        """Returns how far elements of an array usually move or, with `top`, at most."""
        scales = scales_of(values)
        levels, is_rare = np.zeros(values.shape), np.zeros(values.shape, bool)
        for scale in np.unique(scales).tolist():
            measure, of_scale = self._measure(scale), scales == scale
            levels[of_scale] = measure.top if top else measure.level
            is_rare[of_scale] = measure.count < _FEW
        moved = self._most_moved
        if moved is None or moved.shape != values.shape:
            return levels
        # An element that moves by more than its size consists of rounding errors.
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
