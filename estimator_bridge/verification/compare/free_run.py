"""Judges the steps of a free run, in which each side keeps its own state; see docs/numerics.md.

Every operation rounds once, by at most 2**-24 of its result, and errors add up (Higham, Accuracy
and Stability of Numerical Algorithms, 2002, chapters 2 to 4). If these bounds are not enough, a
second training run, in which the last bits of values are changed, measures how much a network
amplifies errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from estimator_bridge.recording.files import ACTIVATIONS, LOSS, VARIABLES, Values
from estimator_bridge.verification.compare import elements
from estimator_bridge.verification.compare.arithmetic.rounded import SMALLEST_NORMAL, UNIT_ROUNDOFF
from estimator_bridge.verification.compare.elements import apart, magnitude
from estimator_bridge.verification.compare.paired_steps import ArrayPair, PairedName, PairedStep
from estimator_bridge.verification.compare.steps import Judged
from estimator_bridge.verification.findings import DENSE, GRADIENT, Residual
from tf2_engine.types import Array

ROUNDINGS_PER_TERM, ROUNDINGS_PER_SUM = 2, 4
"""A weighted sum of n terms counts as ROUNDINGS_PER_TERM * n + ROUNDINGS_PER_SUM roundings."""
ROUNDINGS_PER_UPDATE = 23
"""The number of roundings in the longest update rule, FTRL with weight decay."""
PERTURBATION_FACTOR = 8.0
"""Differences may be this many times as large as in the perturbed run, which is only one sample."""
MAX_PERTURBATION = 0.01
"""If changing last bits moves losses or activations by a larger share, a remark says so.

The share refers to the largest value of an array. Eight times this share, almost a tenth, is
tolerated.
"""

Sensitivity = Mapping[tuple[str, str], Mapping[int, float]]
"""Maps an array's (group, name), and then a step, to how far changed bits moved the array."""


def judged_freely(
    steps: Iterable[PairedStep], tolerance: Tolerance
) -> Iterator[tuple[PairedStep, Iterator[Judged]]]:
    first: PairedStep | None = None
    for step in steps:
        first = first or step
        start = first.sides[0].values.get(VARIABLES, {})
        yield step, _residuals(step, tolerance, step.number - first.number, start)


def _residuals(
    step: PairedStep, tolerance: Tolerance, num_updates: int, start: Values
) -> Iterator[Judged]:
    for group, arrays in step.arrays.items():
        bounds = tolerance.of_step(group, step.number, num_updates, arrays)
        for name, (a, b) in arrays.items():
            begun = start.get(name.name) if group == VARIABLES else np.zeros_like(a)
            allowed, moved = np.asarray(0.0), np.zeros(a.shape)
            if elements.is_float(a.dtype):
                allowed = np.asarray(bounds[name])
                if begun is not None and begun.shape == a.shape:
                    moved = apart(begun, a)
            yield group, name, Residual(a, b, apart(a, b), allowed, moved)


class Tolerance:
    """Computes the tolerance of every array at every step. Steps must be passed in order."""

    def __init__(self, num_terms: int, sensitivity: Sensitivity) -> None:
        self.num_terms = num_terms
        self.remarks: list[str] = []
        self._sensitivity = sensitivity
        self._scales: dict[str, float] = {}
        self._moved: dict[tuple[str, str], float] = {}
        # How far losses and activations, as results of the model, moved relative to their scale.
        self._relative: dict[tuple[str, str], float] = {}

    def of_step(
        self, group: str, number: int, num_updates: int, pairs: Mapping[PairedName, ArrayPair]
    ) -> dict[PairedName, float]:
        # If a sum cancels, its error still depends on its terms, so scales never shrink.
        for name, arrays in pairs.items():
            key = f"{group}:{_scale_of(name)}"
            self._scales[key] = max(self._scales.get(key, 0.0), magnitude(*arrays))
        bounds = {}
        for name in pairs:
            scale = self._scales[f"{group}:{_scale_of(name)}"]
            bounds[name] = allowed(self.num_terms, num_updates, scale)
            bounds[name] += PERTURBATION_FACTOR * self._perturbation(group, number, name, scale)
        return bounds

    def of_outcome(self, num_updates: int, *values: Array) -> float:
        scale = magnitude(*values)
        relative = max(self._relative.values(), default=0.0)
        return allowed(self.num_terms, num_updates, scale) + PERTURBATION_FACTOR * scale * relative

    def _perturbation(self, group: str, number: int, name: PairedName, scale: float) -> float:
        key = group, name.name
        moved = self._sensitivity.get(key, {}).get(number, 0.0)
        self._moved[key] = moved = max(moved, self._moved.get(key, 0.0))
        if group in (ACTIVATIONS, LOSS) and scale:
            self._relative[key] = relative = moved / scale
            if relative > MAX_PERTURBATION and not self.remarks:
                self.remarks.append(
                    f"if the last bits of the initial values are changed, the {name.role} "
                    f"{name.name} moves by "
                    f"{relative:.0%} by step {number}, so that faults cannot be told from rounding "
                    "after that: compare fewer --steps"
                )
        return moved


def _scale_of(name: PairedName) -> str:
    """Returns the key of an array's scale (its largest magnitude so far).

    Arrays that pass rounding errors to each other share a scale: all gradients, all weights of the
    network, and all slots of one name.
    """
    if name.role == GRADIENT:
        return ""
    if name.role != DENSE:
        return name.name
    last = name.name.rpartition("/")[2]
    return f"slot {last}" if last[:1].isupper() else DENSE


def allowed(num_terms: int, num_updates: int, scale: float) -> float:
    """Returns the largest difference that rounding can cause, if sums have `num_terms` terms."""
    per_sum = ROUNDINGS_PER_TERM * num_terms + ROUNDINGS_PER_SUM
    roundings = per_sum + num_updates * (2 * per_sum + ROUNDINGS_PER_UPDATE)
    return 2 * roundings * UNIT_ROUNDOFF * scale + SMALLEST_NORMAL


def terms(batch: Values, features: Iterable[str]) -> int:
    most = 1
    for key in features:
        ids = batch.get(f"features/{key}.values", batch.get(f"features/{key}"))
        if ids is None or ids.size == 0 or ids.dtype.kind not in "iu":
            continue
        of_row = int(np.unique(ids, return_counts=True)[1].max())
        most = max(most, of_row, ids_of_sample(batch, [key]))
    return most


def ids_of_sample(batch: Values, features: Iterable[str]) -> int:
    most = 1
    for key in features:
        samples, dense = batch.get(f"features/{key}.indices"), batch.get(f"features/{key}")
        if samples is not None and samples.size:
            most = max(most, int(np.unique(samples[:, 0], return_counts=True)[1].max()))
        elif dense is not None and dense.ndim > 1:
            most = max(most, dense.shape[1])
    return most
