"""Compares the batches that two sides read."""

from __future__ import annotations

import hashlib

import numpy as np

from estimator_bridge.verify.findings import Batches
from estimator_bridge.verify.record.recording import Recording, Values, read_arrays


def compare_batches(a: Recording, b: Recording) -> Batches:
    """Compares inputs one by one; how far ahead each was read does not count."""
    if not b.batches():
        return Batches(len(a.batches()), True, None, False)
    number, first, reordered = 0, None, False
    for input_number in range(len(a.inputs)):
        digests_a, digests_b = (
            [_digest(read_arrays(path)) for path in side.batches(input_number)] for side in (a, b)
        )
        length = min(len(digests_a), len(digests_b))
        digests_a, digests_b = digests_a[:length], digests_b[:length]
        if first is None and digests_a != digests_b:
            first = number + next(i for i in range(length) if digests_a[i] != digests_b[i])
            reordered = sorted(digests_a) == sorted(digests_b)
        number += length
    return Batches(number, False, first, reordered)


def _digest(batch: Values) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(batch):
        array = np.ascontiguousarray(batch[name])
        digest.update(f"{name} {array.dtype.kind} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.digest()
