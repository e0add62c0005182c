"""Known causes of a divergence, recognised by the settings of both sides or by their numbers.

Numbers are judged at the first step that diverged, since later steps carry every difference on.
A cause is a finding, not a proof; its text says what was seen. The catalogue of settings has the
words of those that are about a setting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from estimator_bridge.settings import render
from estimator_bridge.verify.evidence import Evidence, close
from estimator_bridge.verify.findings import ACTIVATION, Cause, Status, differing_settings
from estimator_bridge.verify.judge import lookups
from estimator_bridge.verify.judge.lookups import Feature, RecordedIds
from estimator_bridge.verify.judge.updates import wrong_updates
from estimator_bridge.verify.outcome_causes import of_outcomes
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.result import Result
from tf2_engine.types import Array, Object

QUIRKS = "quirks"


def explain(result: Result) -> list[Cause]:
    """Returns the recognised causes, the likeliest first."""
    if result.status != Status.DIFFERENT:
        return []
    causes = list(of_settings(result))
    if result.evidence is not None and result.first is not None:
        causes.extend(_of_numbers(result, result.evidence))
    causes.extend(of_outcomes(result))
    if all(cause.name == QUIRKS for cause in causes):
        causes.append(_unknown(result))
    # Quirks may lead to a difference; the others did.
    return sorted(causes, key=lambda cause: cause.name == QUIRKS)


def of_settings(result: Result) -> Iterator[Cause]:
    """Yields the causes that the settings and the data of the sides show."""
    a, b = result.settings
    if a["use_tpu"] != b["use_tpu"]:
        yield from _of_modes(a)
    if a["cores"] != b["cores"]:
        yield Cause(*render.cause("num_shards", a=a["cores"], b=b["cores"]))
    names = {name for side in (a, b) for _, name, _, why in side["settings"] if why}
    if a["quirks"] != b["quirks"] and names:
        yield Cause(
            QUIRKS,
            f"A runs with quirks={a['quirks']}, B with quirks={b['quirks']}: where stock and its "
            f"documents disagree they differ, as about {', '.join(sorted(names))}.",
        )
    for where, name, ours, theirs in differing_settings(a, b):
        text = f"{where}: `{name}` is {ours} on A and {theirs} on B."
        yield Cause(f"setting {name.rpartition('.')[2]}", text)
    if not result.batches.equal:
        yield _of_data(result)


def _of_modes(a: Mapping[str, Object]) -> Iterator[Cause]:
    on_cpu = "AB"[bool(a["use_tpu"])]
    yield Cause(*render.cause("optimization_parameters", side=on_cpu))
    names = [table["name"] for table in a["tables"] if table["combiner"] is None]
    if names:
        yield Cause(*render.cause("combiner_none", tables=", ".join(names)))
    cut = {key: n for table in a["tables"] for key, (n, _) in table["features"].items() if n}
    if cut:
        lengths = ", ".join(f"{key} to {length}" for key, length in sorted(cut.items()))
        yield Cause(*render.cause("sequence", lengths=lengths))


def _of_data(result: Result) -> Cause:
    if result.batches.unlike:
        return Cause("data types", f"The batches differ: {'; '.join(result.batches.unlike)}.")
    number = result.batches.first_different
    name = "data"
    text = f"Batch {number} differs between the sides: the input_fn gives other data each time."
    advice = "Give it seeds, or let side B replay side A's batches."
    if result.batches.reordered:
        name = "data order"
        text = f"Both sides read the same batches in another order, from batch {number} on."
        advice = "Give `shuffle` a seed, or let side B replay side A's batches."
    return Cause(name, f"{text} {advice}")


def _of_numbers(result: Result, evidence: Evidence) -> Iterator[Cause]:
    tests = [_permuted, _swapped, _looked_up, _stale]
    role = result.first.role if result.first else None
    if role not in (None, ACTIVATION, recording.LOSS):
        # An update can be judged only where activations and gradients agree.
        tests.append(wrong_updates)
    for test in tests:
        causes = list(test(evidence))
        yield from causes
        if causes:
            return
    if not evidence.states:
        diverged = [series.name for series in result.series if series.first is not None]
        more = f" and {len(diverged) - 5} more" if len(diverged) > 5 else ""
        yield Cause(
            "initializers",
            "The sides do not start alike: variables that the common start lacks were initialised "
            f"by each side itself: {', '.join(diverged[:5])}{more}. Begin from a checkpoint that "
            "has them.",
        )
    elif role == recording.LOSS:
        yield Cause(
            "model",
            "All activations of the step are equal, and the loss is not: the model itself computes "
            "something else. Dropout and other random numbers differ between versions of "
            "TensorFlow.",
        )


class _Lookup(NamedTuple):
    """A feature whose activations, [batch, ...] on both sides, differ; and its ids in the batch."""

    table: recording.TableDescription
    feature: Feature
    activations: tuple[Array, Array]
    occurrences: RecordedIds


def _differing_lookups(evidence: Evidence) -> Iterator[_Lookup]:
    ours, theirs = evidence.values(recording.ACTIVATIONS)
    batch = evidence.batch or {}
    for table in evidence.settings[0]["tables"]:
        for key, feature in lookups.features_of([table]).items():
            occurrences = lookups.occurrences(batch, feature)
            if occurrences is None or key not in ours or key not in theirs:
                continue
            if not close(ours[key], theirs[key]):
                yield _Lookup(table, feature, (ours[key], theirs[key]), occurrences)


def _looked_up(evidence: Evidence) -> Iterator[Cause]:
    """Tries known mistakes of lookups where the tables agree and activations do not."""
    for lookup in _differing_lookups(evidence):
        rows = evidence.before_of(lookup.table["variable"])
        if rows is None:
            continue
        expected = lookups.look_up(rows, lookup.occurrences, lookup.feature.combiner)
        a, b = lookup.activations
        for side, right, wrong in (("B", a, b), ("A", b, a)):
            # The reference can judge one side only if it reproduces the other.
            if close(expected, right, 1e-5):
                yield from _wrong_lookups(lookup, side, rows, expected, wrong)


def _wrong_lookups(
    lookup: _Lookup, side: str, rows: Array, right: Array, wrong: Array
) -> Iterator[Cause]:
    combiner, occurrences = lookup.feature.combiner, lookup.occurrences
    mistakes = [
        *((name, text, change(occurrences), combiner) for name, text, change in _LOOKUPS),
        *(
            ("combiner", f"combines with {name!r}, not {combiner!r}.", occurrences, name)
            for name in ("sum", "mean", "sqrtn")
        ),
    ]
    for name, text, mistaken, other_combiner in mistakes:
        looked_up = lookups.look_up(rows, mistaken, other_combiner)
        # A mistake that this batch does not show proves nothing.
        if close(looked_up, wrong, 1e-5) and not close(looked_up, right, 1e-5):
            where = f"Table {lookup.table['name']}, feature {lookup.feature.key}: side {side}"
            yield Cause(name, f"{where} {text}")
            return


_LOOKUPS: tuple[tuple[str, str, Callable[[RecordedIds], RecordedIds]], ...] = (
    ("lost weight", "takes every weight as 1.", lookups.without_weights),
    ("truncation", "leaves out the last id of what fills its length.", lookups.without_last),
    (
        "dropped duplicate",
        "counts an id once that is in a sample twice.",
        lookups.without_duplicates,
    ),
    ("id 0", "takes the id 0 for padding.", lookups.without_id_0),
)


def _stale(evidence: Evidence) -> Iterator[Cause]:
    """Tests whether a side looked its activations up in the tables of an earlier step."""
    step = evidence.after[0].number
    earlier = [side for side, _ in evidence.states if side.number != step - 1]
    differing = list(_differing_lookups(evidence))
    for (number, side), lookup, state in itertools.product(
        ((1, "B"), (0, "A")), differing, earlier
    ):
        rows = state.values[recording.VARIABLES].get(lookup.table["variable"])
        if rows is None:
            continue
        stale = lookups.look_up(rows, lookup.occurrences, lookup.feature.combiner)
        if close(stale, lookup.activations[number], 1e-5):
            names = {"table": lookup.table["name"], "feature": lookup.feature.key}
            yield Cause(
                *render.cause("pipelining", step=step, side=side, seen=state.number, **names)
            )
            return


def _unknown(result: Result) -> Cause:
    first = result.first
    if first is None:
        return Cause("unknown", "No known cause; what differs is listed below.")
    if result.settings[1]["engine"] == recording.CHECKPOINT:
        return Cause("unknown", "Of side B the last step alone is known, which tells no cause.")
    return Cause(
        "unknown",
        f"No known cause. The first array to differ is the {first.role} {first.name}; what comes "
        "before it in a step agrees.",
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
                    f"Table {table['name']}: both sides have the same rows, side {side} in the "
                    f'order in which partition_strategy="mod" stores them for {hosts} hosts, read '
                    'as "div". `estimator-bridge convert` puts them in order.',
                )
                break


def _swapped(evidence: Evidence) -> Iterator[Cause]:
    for table in evidence.settings[0]["tables"]:
        slots = {slot: (a, b) for slot, _, a, b in evidence.slots(table)}
        for one, other in itertools.combinations(sorted(slots), 2):
            (a, b), (c, d) = slots[one], slots[other]
            # Each is not its namesake, and is the other.
            if not close(a, b, 1e-3) and close(a, d, 1e-3) and close(c, b, 1e-3):
                yield Cause(
                    "swapped slots",
                    f"Table {table['name']}: A's slot {one} is B's slot {other}, and the other way "
                    "round.",
                )
