"""Compares two recordings: their batches, their steps, and the outcomes of training."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping

from estimator_bridge.progress_line import Progress, no_progress
from estimator_bridge.recording.files import (
    CHECKPOINT,
    EVALUATION,
    EXPORT,
    KERAS,
    PORT,
    PREDICTION,
    VARIABLES,
    Recording,
    SideDescription,
    read_arrays,
)
from estimator_bridge.verification import findings
from estimator_bridge.verification.compare import outcomes
from estimator_bridge.verification.compare.arithmetic.lookups import features_of, occurrences
from estimator_bridge.verification.compare.free_run import Tolerance, judged_freely, terms
from estimator_bridge.verification.compare.lockstep import judged_in_lockstep
from estimator_bridge.verification.compare.outcomes import failures_of, final_exports
from estimator_bridge.verification.compare.paired_steps import Pairing, computed
from estimator_bridge.verification.compare.steps import ComparedSteps
from estimator_bridge.verification.findings import listed
from estimator_bridge.verification.result import Result

Config = Mapping[str, str]

_OF_HOSTS = "sharding_strategy"
"""The device configuration's field for the distribution of rows over hosts."""
_DYNAMIC_RATE = "learning_rate.dynamic"
"""Fields with this ending describe a table's computed learning rate; `tag` is the rate's number.

See `LearningRate` in TensorFlow's optimization_parameters.proto. A tag of 0 is not stored.
"""

_VERBS = {
    EVALUATION: "does not evaluate",
    PREDICTION: "does not predict",
    EXPORT: "exports no model",
}


def compare(
    a: Recording,
    b: Recording,
    perturbed: Recording | None = None,
    progress: Progress = no_progress,
    *,
    until_different: bool = False,
) -> Result:
    """Compares two recordings without searching for causes.

    `perturbed` is a run of side A in which the last bits of values were changed. Its distance from
    side A shows the effect of rounding, which is then tolerated. With `until_different`, the
    comparison stops one step after the first step that differs.
    """
    settings = a.settings, b.settings
    features = features_of(settings[0]["tables"])
    batches = map(read_arrays, a.batches())
    num_terms = max((terms(batch, features) for batch in batches), default=1)
    tolerance = _tolerance(a, b, perturbed, num_terms)
    steps = _steps(a, b, perturbed, tolerance, progress, until_different=until_different)
    every = list(steps.series.values())
    for series in every:
        if series.first is not None:
            series.first = _with_ids(series, series.first, steps.numbers[0], a, settings[0])
    compared: list[findings.Outcome] = []
    if steps.complete and settings[1]["engine"] != CHECKPOINT:
        compared.extend(
            outcomes.compare_outcomes(a, b, _carried(a, b, steps, tolerance, perturbed))
        )
    result = Result(
        settings=settings,
        num_terms=num_terms,
        steps=steps.numbers,
        series=sorted(every, key=lambda series: series.order),
        config=_differences(*(compared_config(*settings))),
        batches=outcomes.compare_batches(a, b),
        outcomes=compared,
        only=(sorted(steps.only[0]), sorted(steps.only[1])),
        remarks=[*steps.remarks, *tolerance.remarks],
        evidence=steps.evidence,
        measured=perturbed is not None,
        lockstep=b.follows,
        undecided=list(_undecided(every)),
        not_compared=list(not_compared(a, b)),
        failures=list(failures(a, b)),
        complete=steps.complete,
    )
    differing = {name for _, name, _, _ in findings.differing_settings(*settings)}
    if result.equal and differing:
        result.notes.append(
            "Settings that differ, but have no effect in these steps: "
            f"{', '.join(sorted(differing))}. Settings of initial values cannot show an effect, "
            "because side B starts with side A's values."
        )
    return result


def _steps(
    a: Recording,
    b: Recording,
    perturbed: Recording | None,
    tolerance: Tolerance,
    progress: Progress,
    *,
    until_different: bool = False,
) -> ComparedSteps:
    pairing = Pairing(a, b)
    paired = pairing.steps()
    steps = ComparedSteps(a, b, pairing.only, lockstep=b.follows)
    if b.follows:
        judged = judged_in_lockstep(paired, a, b, perturbed)
    else:
        judged = judged_freely(paired, tolerance)
    steps.run(judged, progress, until_different=until_different)
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
    # In lockstep, side B starts from side A's state, so only one update separates the sides.
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


def compared_config(a: SideDescription, b: SideDescription) -> tuple[Config, Config]:
    """Returns both device configurations without the differences that do not affect results.

    The tags of computed learning rates are numbered alike on both sides. If a side is a Keras
    model, the distribution of rows over hosts is left out.
    """
    left_out = _OF_HOSTS if KERAS in (a["engine"], b["engine"]) else ""
    of_a, of_b = (
        {
            name: value
            for name, value in _with_rates_in_order(side["config"]).items()
            if name != left_out
        }
        for side in (a, b)
    )
    return of_a, of_b


def _with_rates_in_order(config: Config) -> Config:
    rates = sorted(
        name.removesuffix(".tag")
        for name in config
        if name.endswith((_DYNAMIC_RATE, f"{_DYNAMIC_RATE}.tag"))
    )
    tags = {rate: config.get(f"{rate}.tag", "0") for rate in rates}
    numbers = {tag: str(number) for number, tag in enumerate(dict.fromkeys(tags.values()))}
    others = {
        name: value
        for name, value in config.items()
        if name not in tags and name.removesuffix(".tag") not in tags
    }
    return {**others, **{f"{rate}.tag": numbers[tag] for rate, tag in tags.items()}}


def failures(a: Recording, b: Recording) -> Iterator[str]:
    if b.settings["engine"] == PORT:
        return
    failed = {"A": failures_of(a), "B": failures_of(b)}
    for side, other in (("A", "B"), ("B", "A")):
        for name, error in failed[side].items():
            if name not in failed[other]:
                where = f"in {name}" if name else "after its training"
                yield f"{error}: side {side} failed {where}, and side {other} did not"


def not_compared(a: Recording, b: Recording) -> Iterator[str]:
    steps = max(len(a.numbers()) - 1, 0)
    yield f"Training steps after the first {steps}."
    yield "Initial values: both sides begin with the same values."
    if b.settings["engine"] == CHECKPOINT:
        names = a.outcomes.names()
        kinds = ", ".join(sorted({name.partition("-")[0] for name in names}))
        yield (
            "Activations, gradients, losses, the steps before the last, and what followed the "
            f"training{f' (of side A: {kinds})' if kinds else ''}: side B is a checkpoint."
        )
        return
    every = a.settings["every"]
    if every > 1:
        yield f"Variables within a loop of {every} steps: they are on the device until its end."
    if b.settings["engine"] == PORT:
        yield from _of_port(a, b)
        return
    if names := computed(a.settings, b.settings):
        yield f"{', '.join(names)}: a Keras model computes them, and stores none."
        yield f"{_OF_HOSTS} of the device: a Keras model always has its rows in order on the hosts."
    yield from _of_both(a, b)
    yield from _outcomes(a, b)
    yield from _signatures(a, b)


def _of_port(a: Recording, b: Recording) -> Iterator[str]:
    yield (
        "Settings, the configuration of a device, and the ops of the model: side B has no program "
        "here, so these are not examined as possible causes either."
    )
    if names := computed(a.settings, b.settings):
        yield f"{', '.join(names)}: the loop of side B leaves them out."
    yield from a.outcomes.left_out
    of_b = b.outcomes.names()
    if missing := [name for name in a.outcomes.names() if name not in of_b]:
        yield f"{', '.join(missing)}: the loop of side B records none."


def _of_both(a: Recording, b: Recording) -> Iterator[str]:
    left_out = [*a.outcomes.left_out], [*b.outcomes.left_out]
    for letter, of_side, others in (("A", *left_out), ("B", *left_out[::-1])):
        for what in of_side:
            if what not in others:
                yield f"On side {letter}: {what}"
            elif letter == "A":
                yield what
    for letter, side in (("A", a), ("B", b)):
        if side.num_skipped:
            yield (
                f"Models after the first one that trains: on side {letter}, {side.num_skipped} "
                "further calls to `train` are not compared."
            )


def _outcomes(a: Recording, b: Recording) -> Iterator[str]:
    failed = {"A": failures_of(a), "B": failures_of(b)}
    errors = {**failed["B"], **failed["A"]}
    for name, error in errors.items():
        yield f"{name or 'What follows training'}: it failed ({error})."
    names = {"A": a.outcomes.names(), "B": b.outcomes.names()}
    for side, other in (("A", "B"), ("B", "A")):
        for name in names[side]:
            if failed[other] and name not in names[other] and name not in errors:
                yield f"{name}: side {other} failed earlier."
    exports = final_exports(a, b)
    if exports:
        yield (
            f"{listed(exports)}: `verify` stops side A before its max_steps={a.stopped_before}, so "
            "side A makes no final export. A larger --steps compares it."
        )
    # A side that failed does not show everything that the program does.
    whole = [side for side in "AB" if not failed[side]]
    if not whole:
        yield "What the program does after both sides have failed."
        return
    begun = {name.partition("-")[0] for name in [*names[whole[0]], *exports]}
    missing = [verb for kind, verb in _VERBS.items() if kind not in begun]
    if missing:
        yield f"After its training the program {listed(missing)}."


def _signatures(a: Recording, b: Recording) -> Iterator[str]:
    for number in range(len(a.exported())):
        failed = {"A": a.signatures(number)[1], "B": b.signatures(number)[1]}
        for name in sorted({*failed["A"], *failed["B"]}):
            why = "; ".join(f"on {side}: {of[name]}" for side, of in failed.items() if name in of)
            yield (
                f"Answers of the signature {name} of export {number}: it could not be queried "
                f"({why}). If it takes Examples, pass a file of Examples with `--examples`."
            )
