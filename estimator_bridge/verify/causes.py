"""Known causes of a divergence, recognised by the settings of both sides or by their numbers.

Numbers are judged at the first step that diverged, since later steps carry every difference on.
A cause is a finding, not a proof; its text says what was seen. The catalogue of settings has the
words of those that are about a setting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from estimator_bridge.settings import render
from estimator_bridge.verify.evidence import Evidence, close
from estimator_bridge.verify.findings import ACTIVATION, Cause, differing_settings
from estimator_bridge.verify.judge import lookups
from estimator_bridge.verify.judge.lookups import Feature, Occurrences
from estimator_bridge.verify.judge.updates import wrong_updates
from estimator_bridge.verify.record.recording import ACTIVATIONS, CHECKPOINT, LOSS, VARIABLES
from estimator_bridge.verify.result import Result
from tf2_engine.types import Array, Object

QUIRKS = "quirks"


def explain(result: Result) -> list[Cause]:
    """Returns the recognised causes, the likeliest first."""
    if result.equal:
        return []
    causes = list(of_settings(result))
    if result.evidence is not None and result.first is not None:
        causes.extend(_of_numbers(result, result.evidence))
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
    if a["quirks"] != b["quirks"]:
        names = {name for side in (a, b) for _, name, _, why in side["settings"] if why}
        if names:
            yield Cause(
                QUIRKS,
                f"A runs with quirks={a['quirks']}, B with quirks={b['quirks']}: where stock and "
                f"its documents disagree they differ, as about {', '.join(sorted(names))}.",
            )
    yield from _of_values(a, b)
    if result.batches.first_different is not None:
        yield _of_data(result)


def _diverged(result: Result) -> str:
    names = [series.name for series in result.series if series.first is not None]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _of_modes(a: Mapping[str, Object]) -> Iterator[Cause]:
    on_cpu = "AB"[bool(a["use_tpu"])]
    yield Cause(*render.cause("optimization_parameters", side=on_cpu))
    names = [table["name"] for table in a["tables"] if table["combiner"] is None]
    if names:
        yield Cause(*render.cause("combiner_none", tables=", ".join(names)))
    cut = {key: n for table in a["tables"] for key, (n, _) in table["features"].items() if n}
    if cut:
        yield Cause(*render.cause("sequence", lengths=_lengths(cut)))


def _lengths(features: Mapping[str, int]) -> str:
    return ", ".join(f"{key} to {length}" for key, length in sorted(features.items()))


def _of_values(a: Mapping[str, Object], b: Mapping[str, Object]) -> Iterator[Cause]:
    for where, name, ours, theirs in differing_settings(a, b):
        yield Cause(
            f"setting {name.rpartition('.')[2]}",
            f"{where}: `{name}` is {ours} on A and {theirs} on B.",
        )


def _of_data(result: Result) -> Cause:
    number = result.batches.first_different
    if result.batches.reordered:
        return Cause(
            "data order",
            f"Both sides read the same batches in another order, from batch {number} on. Give "
            "`shuffle` a seed, or let side B replay side A's batches.",
        )
    return Cause(
        "data",
        f"Batch {number} differs between the sides: the input_fn gives other data each time. Give "
        "it seeds, or let side B replay side A's batches.",
    )


def _of_numbers(result: Result, evidence: Evidence) -> Iterator[Cause]:
    tests: list[Callable[[Result, Evidence], Iterator[Cause]]]
    tests = [_permuted, _swapped, _looked_up, _stale]
    if result.first is not None and result.first.role not in (ACTIVATION, LOSS):
        # An update can be judged only where activations and gradients agree.
        tests.append(lambda _, evidence: wrong_updates(evidence))
    for test in tests:
        causes = list(test(result, evidence))
        yield from causes
        if causes:
            return
    if not evidence.states:
        yield Cause(
            "initializers",
            "The sides do not start alike: variables that the common start lacks were initialised "
            f"by each side itself: {_diverged(result)}. Begin from a checkpoint that has them.",
        )
    elif result.first is not None and result.first.role == LOSS:
        yield Cause(
            "model",
            "All activations of the step are equal, and the loss is not: the model itself computes "
            "something else. Dropout and other random numbers differ between versions of "
            "TensorFlow.",
        )


def _looked_up(result: Result, evidence: Evidence) -> Iterator[Cause]:
    """Tries known mistakes of lookups where the tables agree and activations do not."""
    if evidence.before is None or evidence.batch is None:
        return
    ours, theirs = (side.values.get(ACTIVATIONS, {}) for side in evidence.after)
    for key, feature, table in _features(result):
        rows = evidence.before[0].values[VARIABLES].get(table["variable"])
        occurrences = lookups.occurrences(evidence.batch, feature)
        if rows is None or occurrences is None or key not in ours or key not in theirs:
            continue
        if close(ours[key], theirs[key]):
            continue
        for side, right, wrong in (("B", ours[key], theirs[key]), ("A", theirs[key], ours[key])):
            # The reference can judge one side only if it reproduces the other.
            if close(lookups.look_up(rows, occurrences, feature.combiner), right, 1e-5):
                yield from _wrong_lookups(side, table["name"], feature, rows, occurrences, wrong)


def _wrong_lookups(
    side: str, table: str, feature: Feature, rows: Array, occurrences: Occurrences, wrong: Array
) -> Iterator[Cause]:
    where = f"Table {table}, feature {feature.key}: side {side} "
    right = lookups.look_up(rows, occurrences, feature.combiner)
    mistakes = [
        *((name, text, change(occurrences), feature.combiner) for name, text, change in _LOOKUPS),
        *(
            ("combiner", f"combines with {name!r}, not {feature.combiner!r}.", occurrences, name)
            for name in ("sum", "mean", "sqrtn")
        ),
    ]
    for name, text, mistaken, combiner in mistakes:
        looked_up = lookups.look_up(rows, mistaken, combiner)
        # A mistake that this batch does not show proves nothing.
        if close(looked_up, wrong, 1e-5) and not close(looked_up, right, 1e-5):
            yield Cause(name, where + text)
            return


_LOOKUPS: tuple[tuple[str, str, Callable[[Occurrences], Occurrences]], ...] = (
    ("lost weight", "takes every weight as 1.", lookups.without_weights),
    ("truncation", "leaves out the last id of what fills its length.", lookups.without_last),
    (
        "dropped duplicate",
        "counts an id once that is in a sample twice.",
        lookups.without_duplicates,
    ),
    ("id 0", "takes the id 0 for padding.", lookups.without_id_0),
)


def _stale(result: Result, evidence: Evidence) -> Iterator[Cause]:
    """Tests whether a side looked its activations up in the tables of an earlier step."""
    if evidence.batch is None:
        return
    number = evidence.after[0].number
    for side, (step, other) in (("B", evidence.after[::-1]), ("A", evidence.after)):
        for key, feature, table in _features(result):
            occurrences = lookups.occurrences(evidence.batch, feature)
            wrong = step.values.get(ACTIVATIONS, {}).get(key)
            right = other.values.get(ACTIVATIONS, {}).get(key)
            if occurrences is None or wrong is None or right is None or close(wrong, right):
                continue
            for state in evidence.states:
                rows = state[0].values[VARIABLES].get(table["variable"])
                if rows is None or state[0].number == number - 1:
                    continue
                if close(lookups.look_up(rows, occurrences, feature.combiner), wrong, 1e-5):
                    seen = {"table": table["name"], "feature": key, "seen": state[0].number}
                    yield Cause(*render.cause("pipelining", step=number, side=side, **seen))
                    return


def _features(result: Result) -> Iterator[tuple[str, Feature, Mapping[str, Object]]]:
    for table in result.settings[0]["tables"]:
        for key, feature in lookups.features_of([table]).items():
            yield key, feature, table


def _unknown(result: Result) -> Cause:
    first = result.first
    if first is None:
        return Cause("unknown", "No known cause; what differs is listed below.")
    if result.settings[1]["engine"] == CHECKPOINT:
        return Cause("unknown", "Of side B the last step alone is known, which tells no cause.")
    return Cause(
        "unknown",
        f"No known cause. The first array to differ is the {first.role} {first.name}; what comes "
        "before it in a step agrees.",
    )


def _permuted(result: Result, evidence: Evidence) -> Iterator[Cause]:
    for table, ours, theirs in evidence.tables():
        if close(ours, theirs):
            continue
        for hosts, order in lookups.permutations(len(ours)):
            side = next(
                (
                    side
                    for side, one, other in (("B", ours, theirs), ("A", theirs, ours))
                    if close(one[order], other)
                ),
                None,
            )
            if side:
                yield Cause(
                    "row order",
                    f"Table {table['name']}: both sides have the same rows, side {side} in the "
                    f'order in which partition_strategy="mod" stores them for {hosts} hosts, read '
                    'as "div". `estimator-bridge convert` puts them in order.',
                )
                break


def _swapped(result: Result, evidence: Evidence) -> Iterator[Cause]:
    states = [side.values.get(VARIABLES, {}) for side in evidence.after]
    others = {
        (table["name"], slot): name
        for table in result.settings[1]["tables"]
        for name, slot in table["slots"].items()
    }
    for table in result.settings[0]["tables"]:
        pairs = {
            slot: (states[0][name], states[1][others[table["name"], slot]])
            for name, slot in table["slots"].items()
            if name in states[0] and others.get((table["name"], slot)) in states[1]
        }
        for one, other in itertools.combinations(sorted(pairs), 2):
            (a, b), (c, d) = pairs[one], pairs[other]
            # Each is not its namesake, and is the other.
            if not close(a, b, 1e-3) and close(a, d, 1e-3) and close(c, b, 1e-3):
                yield Cause(
                    "swapped slots",
                    f"Table {table['name']}: A's slot {one} is B's slot {other}, and the other way "
                    "round.",
                )
