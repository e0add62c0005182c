"""Compares what followed the trainings: metrics, predictions, exported models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from estimator_bridge.verify.findings import Difference, Outcome
from estimator_bridge.verify.judge.differences import measure
from estimator_bridge.verify.judge.steps import StepComparison
from estimator_bridge.verify.judge.tolerance import Tolerance
from estimator_bridge.verify.record.recording import EXPORT, SERVED, VARIABLES, Recording
from tf2_engine.types import Array


def outcomes(
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


def differing_signatures(a: Recording, b: Recording) -> Iterator[Outcome]:
    """Yields the signatures of exported models whose inputs or outputs differ."""
    for number in range(min(len(a.exported()), len(b.exported()))):
        kind = f"{SERVED}-{number}"
        both = a.signatures(number), b.signatures(number)
        # A model that could not be loaded has a note.
        if not all(both):
            continue
        for name in sorted({*both[0], *both[1]}):
            if name not in both[0] or name not in both[1]:
                side = "A" if name in both[0] else "B"
                yield Outcome(kind, name, 0.0, 0.0, f"a signature on side {side} alone")
            for one in differences(both[0].get(name, {}), both[1].get(name, {})) or ():
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
    trained = steps.series.get((VARIABLES, name)) if kind.startswith(EXPORT) else None
    allowed = trained.points[-1].allowed if trained and trained.points else point.allowed
    return Outcome(kind, name, point.difference, allowed)
