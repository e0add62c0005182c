"""Compares the batches that two sides have read, in their types and values."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from estimator_bridge.recording.array_files import Values, digest, read_arrays
from estimator_bridge.recording.files import Recording
from estimator_bridge.verification.compare.elements import type_name
from estimator_bridge.verification.findings import Batches


def compare_training(a: Recording, b: Recording) -> Batches:
    unlike = tuple(b.unlike)
    if not b.batches():
        return Batches(len(a.batches()), True, None, False, unlike)
    return _compared(
        [(a.batches(number), b.batches(number)) for number in range(len(a.inputs))], unlike
    )


def compare_of_outcome(a: Recording, b: Recording, name: str) -> Batches:
    files_a, files_b = a.outcomes.batches(name), b.outcomes.batches(name)
    about = b.outcomes.about(name)
    unlike = tuple(about.get("unlike", ()))
    if about.get("replayed"):
        return Batches(len(files_a), True, None, False, unlike)
    return _compared([(files_a, files_b)], unlike)


def _compared(
    inputs: Sequence[tuple[list[pathlib.Path], list[pathlib.Path]]], unlike: tuple[str, ...]
) -> Batches:
    number, first, reordered = 0, None, False
    for files in inputs:
        pairs = [tuple(map(read_arrays, pair)) for pair in zip(*files, strict=False)]
        digests = [tuple(map(digest, pair)) for pair in pairs]
        different = [i for i, (one, other) in enumerate(digests) if one != other]
        if first is None and different:
            first = number + different[0]
            reordered = sorted(one for one, _ in digests) == sorted(other for _, other in digests)
            unlike = unlike or tuple(_unlike(*pairs[different[0]]))
        number += len(pairs)
    return Batches(number, False, first, reordered, unlike)


def _unlike(a: Values, b: Values) -> list[str]:
    reasons = [
        f"{name} is on side {'A' if name in a else 'B'} alone"
        for name in sorted(a.keys() ^ b.keys())
    ]
    for name in sorted(a.keys() & b.keys()):
        types = [f"{type_name(side[name])} {list(side[name].shape)}" for side in (a, b)]
        if type_name(a[name]) != type_name(b[name]) or a[name].ndim != b[name].ndim:
            reasons.append(f"{name} is {types[0]} on A, {types[1]} on B")
    return reasons
