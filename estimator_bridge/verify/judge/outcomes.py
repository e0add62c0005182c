"""Compares what the steps of a recording do not hold: batches, metrics, predictions, exports."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from estimator_bridge.verify.findings import Batches, Difference, Outcome
from estimator_bridge.verify.judge.steps import StepComparison, measure
from estimator_bridge.verify.judge.tolerance import Tolerance
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.record.recording import Recording, Values
from tf2_engine.types import Array


def compare_batches(a: Recording, b: Recording) -> Batches:
    """Compares inputs one by one; how far ahead each was read does not count."""
    if not b.batches():
        return Batches(len(a.batches()), True, None, False)
    number, first, reordered = 0, None, False
    for input_number in range(len(a.inputs)):
        files = zip(a.batches(input_number), b.batches(input_number), strict=False)
        pairs = [tuple(_digest(recording.read_arrays(path)) for path in pair) for pair in files]
        different = [i for i, (digest_a, digest_b) in enumerate(pairs) if digest_a != digest_b]
        if first is None and different:
            first = number + different[0]
            digests_a, digests_b = zip(*pairs, strict=True)
            reordered = sorted(digests_a) == sorted(digests_b)
        number += len(pairs)
    return Batches(number, False, first, reordered)


def _digest(batch: Values) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(batch):
        array = np.ascontiguousarray(batch[name])
        digest.update(f"{name} {array.dtype.kind} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.digest()


def compare_outcomes(
    a: Recording, b: Recording, steps: StepComparison, tolerance: Tolerance
) -> Iterator[Outcome]:
    """Yields metrics, predictions, exported variables and answers of exported models."""
    outcomes_a, outcomes_b = a.outcomes(), b.outcomes()
    for kind in sorted({*outcomes_a, *outcomes_b}):
        if kind in outcomes_a and kind in outcomes_b:
            for name in sorted({*outcomes_a[kind], *outcomes_b[kind]}):
                values = outcomes_a[kind].get(name), outcomes_b[kind].get(name)
                yield _outcome(kind, name, *values, steps, tolerance)
        else:
            side, missing = ("A", b) if kind in outcomes_a else ("B", a)
            # A program that failed did not come to all that follows.
            if missing.failure is None:
                yield Outcome(kind, "", 0.0, 0.0, f"only on side {side}")


def _outcome(
    kind: str,
    name: str,
    a: Array | None,
    b: Array | None,
    steps: StepComparison,
    tolerance: Tolerance,
) -> Outcome:
    if a is None or b is None:
        return Outcome(kind, name, 0.0, 0.0, f"only on side {'B' if a is None else 'A'}")
    if a.shape != b.shape:
        return Outcome(kind, name, 0.0, 0.0, f"shapes {a.shape} and {b.shape}")
    point, _ = measure(0, a, b, tolerance.of_outcome(steps.num_updates, a, b))
    # A variable that is exported has the tolerance that it had in training.
    is_variable = kind.startswith(recording.EXPORT)
    trained = steps.series.get((recording.VARIABLES, name)) if is_variable else None
    allowed = trained.points[-1].allowed if trained and trained.points else point.allowed
    return Outcome(kind, name, point.difference, allowed)


def differing_signatures(a: Recording, b: Recording) -> Iterator[Outcome]:
    """Yields the signatures of exported models whose inputs or outputs differ."""
    for number in range(min(len(a.exported()), len(b.exported()))):
        kind = f"{recording.SERVED}-{number}"
        (types_a, _), (types_b, _) = a.signatures(number), b.signatures(number)
        # A model that could not be loaded has a note.
        if not types_a or not types_b:
            continue
        for name in sorted({*types_a, *types_b}):
            if name not in types_a or name not in types_b:
                side = "A" if name in types_a else "B"
                yield Outcome(kind, name, 0.0, 0.0, f"a signature on side {side} alone")
            for one in differences(types_a.get(name, {}), types_b.get(name, {})) or ():
                note = f"{one.name}: {one.a} on A, {one.b} on B"
                yield Outcome(kind, name, 0.0, 0.0, note)


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference] | None:
    """Returns the fields in which two mappings differ; None if one of them is empty."""
    if not a or not b:
        return None
    return [
        Difference(name, a.get(name, "not set"), b.get(name, "not set"))
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]
