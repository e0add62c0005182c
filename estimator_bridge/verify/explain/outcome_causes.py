"""Recognises causes of differences in the outcomes of a training."""

from __future__ import annotations

from collections.abc import Iterator

from estimator_bridge.settings import render
from estimator_bridge.verify.findings import Cause, Findings, some
from estimator_bridge.verify.record.recording import (
    EVALUATION,
    EXPORT,
    PREDICTION,
    SERVED,
    SideDescription,
)

_MAX_NAMES = 5

# If the training agrees: the cause and the observation for each kind of outcome.
_OF_KINDS = {
    EVALUATION: (
        "evaluated model",
        "The model computes something else when it evaluates, or reads other variables.",
    ),
    PREDICTION: (
        "predictions",
        "The model computes something else when it predicts, or reads other variables.",
    ),
    EXPORT: ("export", "The sides export other values than they have trained."),
    SERVED: (
        "served model",
        "The exported graphs compute something else, although their variables agree.",
    ),
}


def of_outcomes(findings: Findings) -> Iterator[Cause]:
    """Yields the causes of outcomes that differ; first those that an outcome shows by itself.

    If the data or the training differed already, the outcomes have no cause of their own.
    """
    unequal = [outcome for outcome in findings.outcomes if not outcome.equal]
    for cause in dict.fromkeys(outcome.cause for outcome in unequal if outcome.cause):
        notes = (f"{one.title}: {one.note}" for one in unequal if one.cause == cause)
        yield Cause(cause, f"{'; '.join(notes)}.")
    if findings.first is not None or not findings.batches.equal:
        return
    explained = {outcome.kind for outcome in unequal if outcome.cause}
    # A served model has the variables of its export.
    explained |= {kind.replace(EXPORT, SERVED) for kind in explained}
    for kind, (cause, seen) in _OF_KINDS.items():
        of_kind = [one for one in unequal if one.kind.partition("-")[0] == kind]
        rest = [one for one in of_kind if one.kind not in explained]
        if rest:
            names = some([one.title for one in rest], _MAX_NAMES)
            text = f"The training agrees, but what follows does not: {names}. {seen}"
            yield from (kind == SERVED and _of_cut_exports(findings)) or [Cause(cause, text)]
        if of_kind and kind == EXPORT:
            return


def _of_cut_exports(findings: Findings) -> list[Cause]:
    a, b = (bool(side.get("cuts_exports")) for side in findings.settings)
    who = f"The export of side {'AB'[b]}"
    return of_sequences(findings.settings[0], who, "serving_input_receiver_fn") if a != b else []


def of_sequences(side: SideDescription, who: str, function: str) -> list[Cause]:
    """Returns the cause that only `who` cuts sequences; empty if no table has sequences.

    Args:
        function: the function of the program that could cut them.
    """
    features = (feature for table in side["tables"] for feature in table["features"].items())
    lengths = ", ".join(f"{key} to {length}" for key, (length, _) in sorted(features) if length)
    if not lengths:
        return []
    return [Cause(*render.cause("sequence", who=who, lengths=lengths, function=function))]
