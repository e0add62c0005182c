"""Compares two recordings, step by step and row by row."""

from __future__ import annotations

from collections.abc import Iterator

from estimator_bridge.progress_line import Progress, no_progress
from estimator_bridge.verify.findings import Divergence, Outcome, Series, differing_settings
from estimator_bridge.verify.judge import outcomes
from estimator_bridge.verify.judge.lookups import features_of, occurrences
from estimator_bridge.verify.judge.steps import StepComparison
from estimator_bridge.verify.judge.tolerance import Sensitivity, Tolerance, terms
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.record.recording import Recording, SideDescription
from estimator_bridge.verify.result import Result


def compare(
    a: Recording,
    b: Recording,
    sensitivity: Sensitivity | None = None,
    progress: Progress = no_progress,
) -> Result:
    """Returns the result of a comparison, without causes.

    Args:
        sensitivity: adds to the tolerance.
    """
    settings = a.settings, b.settings
    features = features_of(settings[0]["tables"])
    batches = map(recording.read_arrays, a.batches())
    num_terms = max((terms(batch, features) for batch in batches), default=1)
    tolerance = Tolerance(num_terms, sensitivity or {})
    steps = StepComparison(a, b, tolerance)
    steps.run(progress)
    for series in steps.series.values():
        if series.first is not None:
            series.first = _with_ids(series, series.first, steps.steps[0], a, settings[0])
    compared: list[Outcome] = []
    if settings[1]["engine"] != recording.CHECKPOINT:
        compared.extend(outcomes.compare_outcomes(a, b, steps, tolerance))
        compared.extend(outcomes.differing_signatures(a, b))
    result = Result(
        settings=settings,
        num_terms=num_terms,
        steps=steps.steps,
        series=sorted(steps.series.values(), key=lambda series: series.order),
        config=outcomes.differences(settings[0]["config"], settings[1]["config"]),
        batches=outcomes.compare_batches(a, b),
        outcomes=compared,
        only=(sorted(steps.only[0]), sorted(steps.only[1])),
        remarks=steps.remarks,
        evidence=steps.evidence,
        measured=sensitivity is not None,
        notes=list(_notes(a, b)),
    )
    differing = {name for _, name, _, _ in differing_settings(*settings)}
    if result.equal and differing:
        result.notes.append(
            f"Settings differ, to no effect in these steps: {', '.join(sorted(differing))}. What "
            "they say of initial values does not show, since side B begins with side A's."
        )
    return result


def sensitivity_of(a: Recording, perturbed: Recording) -> Sensitivity:
    """Returns how far a side moved when its start was perturbed, by group, name and step."""
    result = compare(a, perturbed)
    return {
        (series.group, series.name): {point.step: point.difference for point in series.points}
        for series in result.series
    }


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


def _notes(a: Recording, b: Recording) -> Iterator[str]:
    """Yields what could not be compared."""
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
