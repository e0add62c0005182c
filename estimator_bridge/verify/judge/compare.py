"""Compares two recordings: their batches, their steps, and what followed the trainings."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping

import numpy as np

from estimator_bridge.progress_line import Progress, no_progress
from estimator_bridge.verify import findings
from estimator_bridge.verify.findings import Batches, Difference, Divergence, Outcome, Series
from estimator_bridge.verify.judge.free_run import FreeComparison
from estimator_bridge.verify.judge.lockstep import LockstepComparison
from estimator_bridge.verify.judge.lookups import features_of, occurrences
from estimator_bridge.verify.judge.steps import StepComparison, measure
from estimator_bridge.verify.judge.tolerance import Sensitivity, Tolerance, terms
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.record.recording import Recording, SideDescription, Values
from estimator_bridge.verify.result import Result
from tf2_engine.types import Array


def compare(
    a: Recording,
    b: Recording,
    perturbed: Recording | None = None,
    progress: Progress = no_progress,
) -> Result:
    """Returns the result of a comparison, without causes.

    Args:
        perturbed: side A with its last bits changed; what that moves adds to the tolerance.
    """
    settings = a.settings, b.settings
    features = features_of(settings[0]["tables"])
    batches = map(recording.read_arrays, a.batches())
    num_terms = max((terms(batch, features) for batch in batches), default=1)
    steps = _steps(a, b, perturbed, num_terms)
    steps.run(progress)
    for series in steps.series.values():
        if series.first is not None:
            series.first = _with_ids(series, series.first, steps.steps[0], a, settings[0])
    compared: list[Outcome] = []
    if settings[1]["engine"] != recording.CHECKPOINT:
        compared.extend(_compare_outcomes(a, b, steps))
        compared.extend(_differing_signatures(a, b))
    result = Result(
        settings=settings,
        num_terms=num_terms,
        steps=steps.steps,
        series=sorted(steps.series.values(), key=lambda series: series.order),
        config=_differences(settings[0]["config"], settings[1]["config"]),
        batches=_compare_batches(a, b),
        outcomes=compared,
        only=(sorted(steps.only[0]), sorted(steps.only[1])),
        remarks=steps.remarks,
        evidence=steps.evidence,
        measured=perturbed is not None,
        lockstep=b.follows,
        notes=list(_notes(a, b)),
        undecided=list(_undecided(steps)),
    )
    differing = {name for _, name, _, _ in findings.differing_settings(*settings)}
    if result.equal and differing:
        result.notes.append(
            f"Settings differ, to no effect in these steps: {', '.join(sorted(differing))}. What "
            "they say of initial values does not show, since side B begins with side A's."
        )
    return result


def _steps(
    a: Recording, b: Recording, perturbed: Recording | None, num_terms: int
) -> StepComparison:
    """Returns the comparison of the steps, which depends on how side B runs."""
    if b.follows:
        return LockstepComparison(a, b, perturbed)
    sensitivity = {} if perturbed is None else _sensitivity_of(a, perturbed)
    return FreeComparison(a, b, Tolerance(num_terms, sensitivity))


def _sensitivity_of(a: Recording, perturbed: Recording) -> Sensitivity:
    """Returns how far a side moved when its start was perturbed, by group, name and step."""
    steps = FreeComparison(a, perturbed, Tolerance(1, {}))
    steps.run(no_progress)
    return {
        key: {point.step: point.difference for point in series.points}
        for key, series in steps.series.items()
    }


def _undecided(steps: StepComparison) -> Iterator[str]:
    """Yields the arrays of which faults cannot be told from rounding, with the reasons."""
    for series in steps.series.values():
        if not series.decided and series.first is None:
            yield (
                f"{series.role} {series.name}: "
                + (
                    f"a divergence of {series.visible:.0%} would not have been seen"
                    if math.isfinite(series.visible)
                    else "no divergence would have been seen"
                )
            )


def _with_ids(
    series: Series, first: Divergence, start: int, a: Recording, settings: SideDescription
) -> Divergence:
    """Returns the first divergence of an array with the ids of the row or sample."""
    if first.row is None or series.table is None:
        return first
    if series.group == recording.VARIABLES:
        return first._replace(ids=[first.row])
    batch = a.batch(first.step - start - 1) if settings["cores"] == 1 else None
    feature = features_of(settings["tables"]).get(series.name)
    ids = None if batch is None or feature is None else occurrences(batch, feature)
    if ids is None:
        return first
    samples = ids.cells // (ids.shape[1] if len(ids.shape) > 1 else 1)
    return first._replace(ids=ids.ids[samples == first.row].tolist())


def _compare_batches(a: Recording, b: Recording) -> Batches:
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


def _compare_outcomes(a: Recording, b: Recording, steps: StepComparison) -> Iterator[Outcome]:
    """Yields metrics, predictions, exported variables and answers of exported models."""
    outcomes_a, outcomes_b = a.outcomes(), b.outcomes()
    for kind in sorted({*outcomes_a, *outcomes_b}):
        if kind in outcomes_a and kind in outcomes_b:
            for name in sorted({*outcomes_a[kind], *outcomes_b[kind]}):
                values = outcomes_a[kind].get(name), outcomes_b[kind].get(name)
                yield _outcome(kind, name, *values, steps)
        else:
            side, missing = ("A", b) if kind in outcomes_a else ("B", a)
            # A program that failed did not come to all that follows.
            if missing.failure is None:
                yield Outcome(kind, "", 0.0, 0.0, f"only on side {side}")


def _outcome(
    kind: str, name: str, a: Array | None, b: Array | None, steps: StepComparison
) -> Outcome:
    if a is None or b is None:
        return Outcome(kind, name, 0.0, 0.0, f"only on side {'B' if a is None else 'A'}")
    if a.shape != b.shape:
        return Outcome(kind, name, 0.0, 0.0, f"shapes {a.shape} and {b.shape}")
    point, _ = measure(0, a, b, steps.tolerance.of_outcome(steps.num_updates, a, b))
    # A variable that is exported has the tolerance that it had in training.
    is_variable = kind.startswith(recording.EXPORT)
    trained = steps.series.get((recording.VARIABLES, name)) if is_variable else None
    allowed = trained.points[-1].allowed if trained and trained.points else point.allowed
    return Outcome(kind, name, point.difference, allowed)


def _differing_signatures(a: Recording, b: Recording) -> Iterator[Outcome]:
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
            for one in _differences(types_a.get(name, {}), types_b.get(name, {})) or ():
                note = f"{one.name}: {one.a} on A, {one.b} on B"
                yield Outcome(kind, name, 0.0, 0.0, note)


def _differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference] | None:
    """Returns the fields in which two mappings differ; None if one of them is empty."""
    if not a or not b:
        return None
    return [
        Difference(name, a.get(name, "not set"), b.get(name, "not set"))
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def _notes(a: Recording, b: Recording) -> Iterator[str]:
    if b.settings["engine"] == recording.CHECKPOINT and a.outcomes():
        kinds = dict.fromkeys(kind.partition("-")[0] for kind in a.outcomes())
        yield f"Side B is a checkpoint: {', '.join(sorted(kinds))} of side A cannot be compared."
    for letter, side in (("A", a), ("B", b)):
        if side.num_skipped:
            yield (
                f"On side {letter} the program trains other models too. The first that trains is "
                f"compared; {side.num_skipped} further calls of `train` were not made."
            )
        if side.failure is not None:
            yield (
                f"On side {letter} the program failed after its training ({side.failure}). What "
                "it did not come to is not compared."
            )
    for number in range(len(a.exported())):
        failed = {"A": a.signatures(number)[1], "B": b.signatures(number)[1]}
        for name in sorted({*failed["A"], *failed["B"]}):
            why = "; ".join(f"on {side}: {of[name]}" for side, of in failed.items() if name in of)
            yield (
                f"The signature {name} of export {number} could not be queried ({why}), so that "
                "its answers are not compared. If it takes Examples, give a file of them: "
                "`--examples`."
            )
