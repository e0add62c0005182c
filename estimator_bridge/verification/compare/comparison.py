"""Compares two recordings: their batches, their steps, and the outcomes of the trainings."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

from estimator_bridge.progress_line import Progress, no_progress
from estimator_bridge.recording.files import (
    CHECKPOINT,
    VARIABLES,
    Recording,
    SideDescription,
    read_arrays,
)
from estimator_bridge.verification import findings
from estimator_bridge.verification.compare import scope
from estimator_bridge.verification.compare.after import input_data, outcomes
from estimator_bridge.verification.compare.arithmetic.lookups import features_of, occurrences
from estimator_bridge.verification.compare.free_run import FreeComparison
from estimator_bridge.verification.compare.lockstep import LockstepComparison
from estimator_bridge.verification.compare.steps import StepComparison
from estimator_bridge.verification.compare.tolerance import Sensitivity, Tolerance, terms
from estimator_bridge.verification.result import Result


def compare(
    a: Recording,
    b: Recording,
    perturbed: Recording | None = None,
    progress: Progress = no_progress,
) -> Result:
    """Compares two recordings, without searching for causes.

    Differences that a perturbed run causes are added to the tolerance.
    """
    settings = a.settings, b.settings
    features = features_of(settings[0]["tables"])
    batches = map(read_arrays, a.batches())
    num_terms = max((terms(batch, features) for batch in batches), default=1)
    steps = _steps(a, b, perturbed, num_terms)
    steps.run(progress)
    for series in steps.series.values():
        if series.first is not None:
            series.first = _with_ids(series, series.first, steps.steps[0], a, settings[0])
    compared: list[findings.Outcome] = []
    if settings[1]["engine"] != CHECKPOINT:
        compared.extend(outcomes.compare_outcomes(a, b, _carried(a, b, steps, perturbed)))
    result = Result(
        settings=settings,
        num_terms=num_terms,
        steps=steps.steps,
        series=sorted(steps.series.values(), key=lambda series: series.order),
        config=_differences(*(scope.compared_config(*settings))),
        batches=input_data.compare_training(a, b),
        outcomes=compared,
        only=(sorted(steps.only[0]), sorted(steps.only[1])),
        remarks=steps.remarks,
        evidence=steps.evidence,
        measured=perturbed is not None,
        lockstep=b.follows,
        undecided=list(_undecided(steps)),
        not_compared=list(scope.not_compared(a, b)),
        failures=list(scope.failures(a, b)),
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
    if b.follows:
        return LockstepComparison(a, b, perturbed)
    sensitivity = {} if perturbed is None else _sensitivity_of(a, perturbed)
    return FreeComparison(a, b, Tolerance(num_terms, sensitivity))


def _sensitivity_of(a: Recording, perturbed: Recording) -> Sensitivity:
    steps = FreeComparison(a, perturbed, Tolerance(1, {}))
    steps.run(no_progress)
    return {
        key: {point.step: point.difference for point in series.points}
        for key, series in steps.series.items()
    }


def _carried(
    a: Recording, b: Recording, steps: StepComparison, perturbed: Recording | None
) -> outcomes.Carried:
    variables = {
        name: one.points[-1].allowed
        for (group, name), one in steps.series.items()
        if group == VARIABLES and one.points
    }
    # In lockstep the sides made only the last step separately.
    num_updates = min(1, steps.num_updates) if b.follows else steps.num_updates
    return outcomes.Carried(
        functools.partial(steps.tolerance.of_outcome, num_updates),
        outcomes.own_rounding(a),
        variables,
        {} if perturbed is None else outcomes.movements(a, perturbed),
    )


def _undecided(steps: StepComparison) -> Iterator[str]:
    for series in steps.series.values():
        if not series.decided and series.first is None:
            reason = "no divergence would have been seen"
            if math.isfinite(series.visible):
                reason = f"a divergence of {series.visible:.0%} would not have been seen"
            yield f"{series.role} {series.name}: {reason}"


def _with_ids(
    series: findings.Series,
    first: findings.Divergence,
    start: int,
    a: Recording,
    settings: SideDescription,
) -> findings.Divergence:
    if first.row is None or series.table is None:
        return first
    if series.group == VARIABLES:
        return first._replace(ids=[first.row])
    batch = a.batch(first.step - start - 1) if settings["cores"] == 1 else None
    feature = features_of(settings["tables"]).get(series.name)
    ids = None if batch is None or feature is None else occurrences(batch, feature)
    if ids is None:
        return first
    samples = ids.cells // (ids.shape[1] if len(ids.shape) > 1 else 1)
    return first._replace(ids=ids.ids[samples == first.row].tolist())


def _differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[findings.Difference] | None:
    if not a or not b:
        return None
    return [findings.Difference(*each) for each in findings.differing(a, b)]
