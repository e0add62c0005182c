"""Compares the outcomes of two training runs: metrics, predictions, exports and served answers.

Results of the same ops on equal variables and data must be bitwise equal. `Carried` has the
tolerances of all other results.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge.recording.array_files import Values, digest, read_arrays
from estimator_bridge.recording.files import (
    EVALUATION,
    EXPORT,
    PORT,
    SERVED,
    Recording,
    SideDescription,
    parts_of_tables,
)
from estimator_bridge.verification.compare.arithmetic.lookups import features_of
from estimator_bridge.verification.compare.elements import magnitude, type_name
from estimator_bridge.verification.compare.evaluation_metrics import (
    SampleDifferences,
    compare_metrics,
)
from estimator_bridge.verification.compare.free_run import (
    PERTURBATION_FACTOR,
    allowed,
    ids_of_sample,
)
from estimator_bridge.verification.findings import Batches, Outcome, differing

EQUAL_TO_THE_BIT = "computed from equal numbers by the same ops"
OWN_ROUNDING = "computed from equal numbers: its own rounding"
CARRIED = "caused by differences in the training"


@dataclasses.dataclass(frozen=True)
class Carried:
    """The tolerances of outcomes, which depend on the differences that training left.

    Attributes:
        of_outputs: the tolerance of outputs if the trained variables differ.
        own_rounding: the tolerance of outputs that are computed from equal variables and data.
        of_variables: the tolerances of variables after the last step, keyed by name.
        moved: how far each output moves if last bits are changed, keyed by (outcome, output).
    """

    of_outputs: Callable[..., float]
    own_rounding: Callable[..., float]
    of_variables: Mapping[str, float]
    moved: Mapping[tuple[str, str], float]


def compare_outcomes(a: Recording, b: Recording, carried: Carried) -> Iterator[Outcome]:
    names_a, names_b = a.outcomes.names(), b.outcomes.names()
    if b.settings["engine"] == PORT:  # a replay may record any outcomes
        names_a = [name for name in names_a if name in names_b]
    waiting = final_exports(a, b)
    for name in dict.fromkeys([*names_a, *names_b]):
        if name in names_a and name in names_b:
            yield from _compared(_Pair(a, b, name, carried))
        elif name not in waiting and not failures_of(b if name in names_a else a):
            side = "A" if name in names_a else "B"
            yield Outcome(name, "", 0.0, 0.0, f"only on side {side}")
    for number in range(min(len(a.exported()), len(b.exported()))):
        yield from _differing_signatures(a, b, number)


def final_exports(a: Recording, b: Recording) -> list[str]:
    """Lists B's exports that A lacks because `verify` stopped A before its `max_steps`.

    A FinalExporter exports nothing then, but a Keras program exports after any training.
    """
    if a.stopped_before is None:
        return []
    of_a, of_b = a.outcomes.names(), b.outcomes.names()
    return [name for name in of_b if name.startswith((EXPORT, SERVED)) and name not in of_a]


def own_rounding(a: Recording) -> Callable[..., float]:
    features = features_of(a.settings["tables"])
    files = (path for name in a.outcomes.names() for path in a.outcomes.batches(name))
    most = max((ids_of_sample(read_arrays(path), features) for path in files), default=1)
    return lambda *arrays: allowed(most, 0, magnitude(*arrays))


def movements(a: Recording, perturbed: Recording) -> dict[tuple[str, str], float]:
    largest: dict[tuple[str, str], float] = {}
    for name in {*a.outcomes.names()} & {*perturbed.outcomes.names()}:
        for output, differences in _differences(a, perturbed, name).items():
            if np.isfinite(differences.largest):
                largest[name, output] = differences.largest
    return largest


def failures_of(side: Recording) -> dict[str, str]:
    """Maps each failed outcome's name to its error; "" stands for a failure of the run itself."""
    failed = side.outcomes.failed()
    if side.failure is not None and not failed:
        failed = {"": side.failure}
    return failed


def same_ops(a: SideDescription, b: SideDescription) -> bool:
    keys = ("engine", "tensorflow", "use_tpu", "where", "cores", "quirks")
    programs = [side["program"].rpartition("SHA-256 ")[2] for side in (a, b)]
    return all(a.get(key) == b.get(key) for key in keys) and programs[0] == programs[1]


@dataclasses.dataclass(frozen=True)
class _Pair:
    a: Recording
    b: Recording
    name: str
    carried: Carried

    @functools.cached_property
    def data(self) -> Batches:
        files_a, files_b = (side.outcomes.batches(self.name) for side in (self.a, self.b))
        about = self.b.outcomes.about(self.name)
        unlike = tuple(about.get("unlike", ()))
        if about.get("replayed"):
            return Batches(len(files_a), True, None, False, unlike)
        return _batches([(files_a, files_b)], unlike)

    def tolerance(self, output: str, scale: float) -> tuple[float, str]:
        equal = self.data.equal and _equal_variables(self.a, self.b, self.name)
        if equal and same_ops(self.a.settings, self.b.settings):
            return 0.0, EQUAL_TO_THE_BIT
        sample = np.array([scale], np.float32)
        base = self.carried.own_rounding if equal else self.carried.of_outputs
        moved = self.carried.moved.get((self.name, output), 0.0)
        why = OWN_ROUNDING if equal else CARRIED
        return base(sample, sample) + PERTURBATION_FACTOR * moved, why


def _compared(pair: _Pair) -> Iterator[Outcome]:
    read, kind = pair.data, pair.name.partition("-")[0]
    if not read.equal:
        yield Outcome(pair.name, "data", np.inf, 0.0, str(read), cause=f"{kind} data")
    if kind == EVALUATION:
        yield from compare_metrics(pair.a, pair.b, pair.name, pair.tolerance)
        return
    if kind == EXPORT:
        yield from _exported(pair)
        return
    for output, differences in _differences(pair.a, pair.b, pair.name).items():
        yield differences.outcome(pair.name, output, *pair.tolerance(output, differences.scale))


def _differences(a: Recording, b: Recording, name: str) -> dict[str, SampleDifferences]:
    by_output: dict[str, SampleDifferences] = {}
    none: Values = {}
    chunks = itertools.zip_longest(a.outcomes.chunks(name), b.outcomes.chunks(name), fillvalue=none)
    for number, (chunk_a, chunk_b) in enumerate(chunks):
        for output in dict.fromkeys([*chunk_a, *chunk_b]):
            differences = by_output.setdefault(output, SampleDifferences(is_new=not number))
            differences.add(chunk_a.get(output), chunk_b.get(output))
    return by_output


def _equal_variables(a: Recording, b: Recording, name: str) -> bool:
    # Served models have the variables of their export.
    name = name.replace(SERVED, EXPORT)
    digests = [
        _by_tables(side.outcomes.about(name).get("variables", {}), side.settings) for side in (a, b)
    ]
    tables = [(table["name"], None) for table in a.settings["tables"]]
    common = digests[0].keys() & digests[1].keys()
    return (
        bool(common)
        and all(table in common for table in tables)
        and all(digests[0][key] == digests[1][key] for key in common)
    )


def _by_tables(
    digests: Mapping[str, str], settings: SideDescription
) -> dict[tuple[str, str | None], str]:
    keys = parts_of_tables(settings["tables"])
    return {keys.get(name, (name, "")): digest for name, digest in digests.items()}


def _exported(pair: _Pair) -> Iterator[Outcome]:
    """Compares exported variables; a side is at fault if its export differs from its variables."""
    kept = [_kept(side, pair.name) for side in (pair.a, pair.b)]
    for output, differences in _differences(pair.a, pair.b, pair.name).items():
        allowed, why = pair.tolerance(output, differences.scale)
        if why == OWN_ROUNDING:  # exports are copies, which are not rounded
            allowed = 0.0
        if why == CARRIED:
            allowed = pair.carried.of_variables.get(output, allowed)
        outcome = differences.outcome(pair.name, output, allowed, why)
        keeps_a, keeps_b = (side.get(output) for side in kept)
        if {keeps_a, keeps_b} == {True, False} and not outcome.note:
            at_fault = "A" if keeps_b else "B"
            note = f"side {at_fault} exports values that its checkpoint does not hold"
            outcome = outcome._replace(note=note, cause="export")
        yield outcome


def _kept(side: Recording, name: str) -> dict[str, bool]:
    before = side.outcomes.about(name).get("variables", {})
    return {
        output: before[output] == digest({"": array})
        for chunk in side.outcomes.chunks(name)
        for output, array in chunk.items()
        if output in before
    }


def _differing_signatures(a: Recording, b: Recording, number: int) -> Iterator[Outcome]:
    kind = f"{SERVED}-{number}"
    (types_a, _), (types_b, _) = a.signatures(number), b.signatures(number)
    if not types_a or not types_b:
        return
    for name in sorted({*types_a, *types_b}):
        if name not in types_a or name not in types_b:
            side = "A" if name in types_a else "B"
            yield Outcome(kind, name, 0.0, 0.0, f"a signature on side {side} alone")
        of_a, of_b = types_a.get(name, {}), types_b.get(name, {})
        for key, one, other in differing(of_a, of_b) if of_a and of_b else ():
            yield Outcome(kind, name, 0.0, 0.0, f"{key}: {one} on A, {other} on B")


def compare_batches(a: Recording, b: Recording) -> Batches:
    unlike = tuple(b.unlike)
    if not b.batches():
        return Batches(len(a.batches()), True, None, False, unlike)
    return _batches(
        [(a.batches(number), b.batches(number)) for number in range(len(a.inputs))], unlike
    )


def _batches(
    inputs: Sequence[tuple[list[pathlib.Path], list[pathlib.Path]]], unlike: tuple[str, ...]
) -> Batches:
    number, first, reordered = 0, None, False
    for files in inputs:
        pairs = [tuple(map(read_arrays, pair)) for pair in zip(*files, strict=False)]
        digests = [tuple(map(digest, pair)) for pair in pairs]
        different = [i for i, (one, other) in enumerate(digests) if one != other]
        if first is None and different:
            first = number + different[0]
            reordered = sorted(one for one, _ in digests) == sorted(other for _, other in digests)
            unlike = unlike or tuple(_unlike(*pairs[different[0]]))
        number += len(pairs)
    return Batches(number, False, first, reordered, unlike)


def _unlike(a: Values, b: Values) -> list[str]:
    reasons = [
        f"{name} is on side {'A' if name in a else 'B'} alone"
        for name in sorted(a.keys() ^ b.keys())
    ]
    for name in sorted(a.keys() & b.keys()):
        types = [f"{type_name(side[name])} {list(side[name].shape)}" for side in (a, b)]
        if type_name(a[name]) != type_name(b[name]) or a[name].ndim != b[name].ndim:
            reasons.append(f"{name} is {types[0]} on A, {types[1]} on B")
    return reasons
