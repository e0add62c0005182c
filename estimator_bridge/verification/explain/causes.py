"""Recognises known causes of a divergence, from settings, values and outcomes.

Values are judged at the first step that diverged, because in a free run later steps inherit every
difference. A cause is an observation, not a proof.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping

from estimator_bridge.recording.files import (
    CHECKPOINT,
    EVALUATION,
    EXPORT,
    GRADIENTS,
    LOSS,
    PREDICTION,
    SERVED,
    SideDescription,
)
from estimator_bridge.settings import render
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.explain.lookup_causes import stale_lookups, wrong_lookups
from estimator_bridge.verification.explain.movements import model_causes, wrong_updates
from estimator_bridge.verification.explain.search import Search
from estimator_bridge.verification.explain.update_causes import diagnoses
from estimator_bridge.verification.findings import (
    ACTIVATION,
    Cause,
    Evidence,
    Status,
    close,
    differing_settings,
    some,
)
from estimator_bridge.verification.result import Result
from tf2_engine.types import Object

QUIRKS = "quirks"
_MAX_NAMES = 5

# If training agrees: the cause and the observation for each kind of outcome.
_OTHER_MODEL = (
    "When the model {0}, it computes something different, reads different variables, or changes "
    "variables: by a train_op, an assignment or an update that runs in every mode."
)
_OF_KINDS = {
    EVALUATION: ("evaluated model", _OTHER_MODEL.format("evaluates")),
    PREDICTION: ("predictions", _OTHER_MODEL.format("predicts")),
    EXPORT: ("export", "The sides export values that differ from the trained values."),
    SERVED: (
        "served model",
        "The exported graphs compute different results, although their variables agree.",
    ),
}


def explain(result: Result, search: Search | None = None) -> list[Cause]:
    if result.status != Status.DIFFERENT:
        return []
    search = search or Search(math.inf)
    causes = [*of_settings(result), *_of_missing(result)]
    if result.evidence is not None and result.first is not None:
        causes.extend(_of_numbers(result, result.evidence, search))
    causes.extend(of_outcomes(result))
    if all(cause.name == QUIRKS for cause in causes):
        causes.append(_unknown(result))
    # Quirks are only a possible explanation; the other causes are certain.
    return sorted(causes, key=lambda cause: cause.name == QUIRKS)


def are_conclusive(result: Result) -> bool:
    evidence = result.evidence
    if evidence is None or not evidence.residuals:
        return False
    if any(wrong_lookups(evidence)):
        return True
    # The verdict depends on the diagnoses, so there is no time limit. `explain` reuses them.
    result.diagnoses = list(diagnoses(evidence))
    return any(diagnosis.explains for diagnosis in result.diagnoses)


def of_settings(result: Result) -> Iterator[Cause]:
    a, b = result.settings
    if a["use_tpu"] != b["use_tpu"]:
        yield from _of_modes(a)
    if a["cores"] != b["cores"]:
        yield Cause(*render.cause("num_shards", a=a["cores"], b=b["cores"]))
    names = {name for side in (a, b) for _, name, _, why in side["settings"] if why}
    if a["quirks"] != b["quirks"] and names:
        yield Cause(
            QUIRKS,
            f"A runs with quirks={a['quirks']}, and B with quirks={b['quirks']}. The sides differ "
            f"where stock does not do what its documentation says: for {', '.join(sorted(names))}.",
        )
    yield from _of_arithmetic(a, b)
    for where, name, ours, theirs in differing_settings(a, b):
        text = f"{where}: `{name}` is {ours} on A and {theirs} on B."
        yield Cause(f"setting {name.rpartition('.')[2]}", text)
    if not result.batches.equal:
        yield _of_data(result)


def _of_arithmetic(a: Mapping[str, Object], b: Mapping[str, Object]) -> Iterator[Cause]:
    for letter, side, other in (("A", a, b), ("B", b, a)):
        kept = {(where, name) for where, name, _, why in other["settings"] if not why}
        dropped = [
            f"`{name}`={value} ({where})"
            for where, name, value, why in side["settings"]
            if why and (where, name) in kept
        ]
        if dropped and side.get("arithmetic") == "sparsecore":
            yield Cause(
                "SparseCores",
                f"Side {letter}, with the arithmetic of SparseCores, ignores {', '.join(dropped)}.",
            )


def _of_missing(result: Result) -> Iterator[Cause]:
    prefix = f"{GRADIENTS} "
    for side, other, names in (("A", "B", result.only[0]), ("B", "A", result.only[1])):
        gradients = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        if gradients:
            yield Cause(
                "lost gradient",
                f"Side {side} computes gradients of {', '.join(gradients)}, but in the model of "
                f"side {other} the loss does not depend on them.",
            )


def _of_modes(a: SideDescription) -> Iterator[Cause]:
    on_cpu = "AB"[bool(a["use_tpu"])]
    yield Cause(*render.cause("optimization_parameters", side=on_cpu))
    names = [table["name"] for table in a["tables"] if table["combiner"] is None]
    if names:
        yield Cause(*render.cause("combiner_none", tables=", ".join(names)))
    yield from of_sequences(a, "The side with use_tpu=True", "input_fn")


def _of_data(result: Result) -> Cause:
    if result.batches.unlike:
        return Cause("data types", f"The batches differ: {'; '.join(result.batches.unlike)}.")
    number = result.batches.first_different
    name = "data"
    text = f"The sides read different data, from batch {number} on."
    advice = (
        "Either the two programs read their input differently, or an input_fn shuffles or draws "
        "without a fixed seed, so that every run gets different data. Leave out --own-input to "
        "train side B on the batches of side A."
    )
    if result.batches.reordered:
        name = "data order"
        text = f"Both sides read the same batches in another order, from batch {number} on."
        advice = (
            "Give `shuffle` a fixed seed, or leave out --own-input to train side B on the batches "
            "of side A."
        )
    return Cause(name, f"{text} {advice}")


def _of_numbers(result: Result, evidence: Evidence, search: Search) -> Iterator[Cause]:
    def update_causes(evidence: Evidence) -> Iterator[Cause]:
        known = result.diagnoses
        return (one.cause for one in (diagnoses(evidence, search) if known is None else known))

    tests: dict[str, Callable[[Evidence], Iterator[Cause]]] = {
        "rows in another order": _permuted,
        "swapped slots": _swapped,
        "other lookups": wrong_lookups,
        "stale lookups": stale_lookups,
    }
    role = result.first.role if result.first else None
    if evidence.states and role not in (None, ACTIVATION, LOSS):
        # An update can only be judged if activations and gradients agree.
        tests["other updates of tables"] = update_causes
        tests["gradients and variables of the model"] = model_causes
        tests["wrong updates"] = wrong_updates
    for what, test in tests.items():
        causes = list(test(evidence)) if search.allows(what) else []
        yield from causes
        if causes:
            return
    if not evidence.states:
        diverged = [series.name for series in result.series if series.first is not None]
        yield Cause(
            "initializers",
            "The initial values differ, because the checkpoint from which both sides start lacks "
            f"some variables, which each side initialises itself: {some(diverged, _MAX_NAMES)}. "
            "Begin from a checkpoint that has all variables.",
        )
    elif role == LOSS:
        yield Cause(
            "model",
            "All activations of the step are equal, but the losses differ. So the two models "
            "compute different losses. Dropout and other random numbers differ between versions "
            "of TensorFlow.",
        )


def _unknown(result: Result) -> Cause:
    first = result.first
    if first is None:
        return Cause("unknown", "No known cause; what differs is listed below.")
    if result.settings[1]["engine"] == CHECKPOINT:
        return Cause(
            "unknown",
            "Side B is a checkpoint: only its last step is known, which alone shows no cause.",
        )
    return Cause(
        "unknown",
        f"No known cause. The first array to differ is the {first.role} {first.name}; all arrays "
        "that the step computes earlier agree.",
    )


def _permuted(evidence: Evidence) -> Iterator[Cause]:
    for table, a, b in evidence.tables():
        if close(a, b):
            continue
        for hosts, order in lookups.permutations(len(a)):
            side = "B" if close(a[order], b) else "A" if close(b[order], a) else None
            if side:
                yield Cause(
                    "row order",
                    f"Table {table['name']}: both sides have the same rows, but side {side} has "
                    f'them in the order in which partition_strategy="mod" stores rows on {hosts} '
                    'hosts. So it has read such a checkpoint as if it were "div". '
                    "`estimator-bridge convert` puts the rows in order.",
                )
                break


def _swapped(evidence: Evidence) -> Iterator[Cause]:
    for table in evidence.settings[0]["tables"]:
        slots = {slot: (a, b) for slot, _, a, b in evidence.slots(table)}
        for one, other in itertools.combinations(sorted(slots), 2):
            (a, b), (c, d) = slots[one], slots[other]
            # Each slot differs from its namesake and equals the other one.
            if not close(a, b, 1e-3) and close(a, d, 1e-3) and close(c, b, 1e-3):
                yield Cause(
                    "swapped slots",
                    f"Table {table['name']}: A's slot {one} is B's slot {other}, and A's slot "
                    f"{other} is B's slot {one}.",
                )


def of_outcomes(findings: Result) -> Iterator[Cause]:
    unequal = [outcome for outcome in findings.outcomes if not outcome.equal]
    for cause in dict.fromkeys(outcome.cause for outcome in unequal if outcome.cause):
        notes = (f"{one.title}: {one.note}" for one in unequal if one.cause == cause)
        yield Cause(cause, f"{'; '.join(notes)}.")
    if findings.first is not None or not findings.batches.equal:
        return  # the outcomes differ because the training or the data did
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


def _of_cut_exports(findings: Result) -> list[Cause]:
    a, b = (bool(side.get("cuts_exports")) for side in findings.settings)
    who = f"The export of side {'AB'[b]}"
    return of_sequences(findings.settings[0], who, "serving_input_receiver_fn") if a != b else []


def of_sequences(side: SideDescription, who: str, function: str) -> list[Cause]:
    features = (feature for table in side["tables"] for feature in table["features"].items())
    lengths = ", ".join(f"{key} to {length}" for key, (length, _) in sorted(features) if length)
    if not lengths:
        return []
    return [Cause(*render.cause("sequence", who=who, lengths=lengths, function=function))]
