"""Compares two recordings: their batches, their steps, and the outcomes of the trainings."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping

from estimator_bridge.progress_line import Progress, no_progress
from estimator_bridge.recording.files import (
    CHECKPOINT,
    VARIABLES,
    Recording,
    SideDescription,
    read_arrays,
)
from estimator_bridge.verification import findings
from estimator_bridge.verification.compare import outcomes, scope
from estimator_bridge.verification.compare.arithmetic.lookups import features_of, occurrences
from estimator_bridge.verification.compare.free_run import Tolerance, judged_freely, terms
from estimator_bridge.verification.compare.lockstep import judged_in_lockstep
from estimator_bridge.verification.compare.paired_steps import Pairing
from estimator_bridge.verification.compare.steps import ComparedSteps
from estimator_bridge.verification.result import Result


def compare(
    a: Recording,
    b: Recording,
    perturbed: Recording | None = None,
    progress: Progress = no_progress,
) -> Result:
    """Compares without searching for causes; the tolerance includes what a perturbed run moves."""
    settings = a.settings, b.settings
    features = features_of(settings[0]["tables"])
    batches = map(read_arrays, a.batches())
    num_terms = max((terms(batch, features) for batch in batches), default=1)
    tolerance = _tolerance(a, b, perturbed, num_terms)
    steps = _steps(a, b, perturbed, tolerance, progress)
    every = list(steps.series.values())
    for series in every:
        if series.first is not None:
            series.first = _with_ids(series, series.first, steps.numbers[0], a, settings[0])
    compared: list[findings.Outcome] = []
    if settings[1]["engine"] != CHECKPOINT:
        compared.extend(
            outcomes.compare_outcomes(a, b, _carried(a, b, steps, tolerance, perturbed))
        )
    result = Result(
        settings=settings,
        num_terms=num_terms,
        steps=steps.numbers,
        series=sorted(every, key=lambda series: series.order),
        config=_differences(*(scope.compared_config(*settings))),
        batches=outcomes.compare_batches(a, b),
        outcomes=compared,
        only=(sorted(steps.only[0]), sorted(steps.only[1])),
        remarks=[*steps.remarks, *tolerance.remarks],
        evidence=steps.evidence,
        measured=perturbed is not None,
        lockstep=b.follows,
        undecided=list(_undecided(every)),
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
    a: Recording,
    b: Recording,
    perturbed: Recording | None,
    tolerance: Tolerance,
    progress: Progress,
) -> ComparedSteps:
    one, other = a.settings, b.settings
    pairing = Pairing(one["tables"], other["tables"], scope.computed(one, other))
    paired = pairing.steps(a, b)
    steps = ComparedSteps(a, b, pairing.only, lockstep=b.follows)
    if b.follows:
        steps.run(judged_in_lockstep(paired, a, b, perturbed), progress)
    else:
        steps.run(judged_freely(paired, tolerance), progress)
    return steps


def _tolerance(
    a: Recording, b: Recording, perturbed: Recording | None, num_terms: int
) -> Tolerance:
    if b.follows:
        return Tolerance(1, {})
    if perturbed is None:
        return Tolerance(num_terms, {})
    steps = _steps(a, perturbed, None, Tolerance(1, {}), no_progress)
    moved = {
        key: {point.step: point.difference for point in series.points}
        for key, series in steps.series.items()
    }
    return Tolerance(num_terms, moved)


def _carried(
    a: Recording,
    b: Recording,
    steps: ComparedSteps,
    tolerance: Tolerance,
    perturbed: Recording | None,
) -> outcomes.Carried:
    variables = {
        name: one.points[-1].allowed
        for (group, name), one in steps.series.items()
        if group == VARIABLES and one.points
    }
    # In lockstep the sides made only the last step separately.
    num_updates = min(1, steps.num_updates) if b.follows else steps.num_updates
    return outcomes.Carried(
        functools.partial(tolerance.of_outcome, num_updates),
        outcomes.own_rounding(a),
        variables,
        {} if perturbed is None else outcomes.movements(a, perturbed),
    )


def _undecided(every: Iterable[findings.Series]) -> Iterator[str]:
    for series in every:
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
