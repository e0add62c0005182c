"""Measures how far apart the samples of an output are on two sides, chunk by chunk."""

from __future__ import annotations

import math

import numpy as np

from estimator_bridge.recording.array_files import is_list
from estimator_bridge.verification.compare import elements
from estimator_bridge.verification.findings import Outcome
from tf2_engine.types import Array


class SampleDifferences:
    """The differences of one output, of any type and shape.

    Attributes:
        largest: the largest difference of an element.
        scale: the largest magnitude of an element.
        note: a difference of types, shapes or numbers of samples in words, or "".
    """

    def __init__(self, *, is_new: bool = True) -> None:
        self.largest = 0.0
        self.scale = 0.0
        self.note = "" if is_new else "not all samples have it"
        self._where = ""
        self._count = 0
        self._different = 0

    def add(self, a: Array | None, b: Array | None) -> None:
        """Compares a chunk of both sides: [samples, ...], or a scalar."""
        if a is None or b is None:
            side = "B" if a is None else "A"
            some = "further samples " if self._count else ""
            self.note = self.note or f"{some}only on side {side}"
            return
        if is_list(a) or is_list(b):
            self._add_one_by_one(a, b)
            return
        names = elements.type_name(a), elements.type_name(b)
        if names[0] != names[1]:
            self.note = self.note or f"{names[0]} on A, {names[1]} on B"
        elif a.shape != b.shape:
            self.note = self.note or f"shapes {a.shape} and {b.shape}"
        else:
            self._add_alike(a, b)

    def outcome(self, kind: str, name: str, allowed: float, why: str) -> Outcome:
        where = self._where
        if where and self._count > 1:
            verb = "differ" if self._different != 1 else "differs"
            where = f"{where}; {self._different} of {self._count} samples {verb}"
        return Outcome(kind, name, self.largest, allowed, self.note, where, why)

    def _add_one_by_one(self, a: Array, b: Array) -> None:
        if len(a) != len(b):
            self.note = self.note or f"{len(a)} samples on A, {len(b)} on B"
            return
        for one, other in zip(a, b, strict=True):
            number = self._count
            self.add(np.asarray(one)[np.newaxis], np.asarray(other)[np.newaxis])
            if self.note and self._count == number:
                if "sample" not in self.note:
                    self.note = f"sample {number}: {self.note}"
                return

    def _add_alike(self, a: Array, b: Array) -> None:
        apart = elements.differences(a, b)
        self.scale = max(self.scale, elements.magnitude(a, b))
        self._different += elements.count_rows(apart)
        if apart.size and (largest := float(apart.max())) > self.largest:
            self.largest = largest
            index = tuple(int(i) for i in np.unravel_index(int(apart.argmax()), apart.shape))
            self._where = self._place(index) + self._values(a[index], b[index], largest)
        self._count += len(apart) if apart.ndim else 1

    def _place(self, index: tuple[int, ...]) -> str:
        if not index:
            return ""
        element = f", element {list(index[1:])}" if index[1:] else ""
        return f"sample {self._count + index[0]}{element}: "

    @staticmethod
    def _values(a: object, b: object, largest: float) -> str:
        apart = elements.ulps(a, b) if math.isfinite(largest) else 0
        ulps = f" ({apart} ULP apart)" if apart else ""
        return f"{elements.shown(a)} on A, {elements.shown(b)} on B{ulps}"
